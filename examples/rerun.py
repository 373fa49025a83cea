"""A helper of the notebooks, not an example: run them and write them back with their outputs, without traces of the machine.

    python examples/rerun.py [1_watch_vpg_learn.ipynb ...]

Needs the dev extra. A notebook with a failing cell is not changed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook as it is after every cell has run, in a folder of its own; raises where a cell does."""
    shutil.copy(HERE / "pictures.py", folder)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "",  # hide the kernel's own warnings
        "IPYTHONDIR": str(folder / ".ipython"),
    }
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute(env=environment)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The same without what differs from machine to machine."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number:02d}", {}
        for output in cell.get("outputs", []):
            output.pop("transient", None)
            if "metadata" in output:
                output.metadata = {}
    return notebook


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(clean(executed(path, Path(folder))), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
