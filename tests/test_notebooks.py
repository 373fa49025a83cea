"""The notebooks run from the first cell to the last, with the assertions inside them, and are clean as they are committed."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LARGEST = 600_000  # bytes: GitHub shows no notebook that is much larger
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def rerun() -> ModuleType:
    """examples/rerun.py, which is no part of a package."""
    pytest.importorskip("nbclient")
    spec = importlib.util.spec_from_file_location("rerun", ROOT / "examples" / "rerun.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


@each
def test_it_runs_and_what_it_asserts_holds(path, rerun, tmp_path):
    notebook = rerun.executed(path, tmp_path)  # raises where a cell does
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any("assert " in cell.source for cell in code)
    assert not list(tmp_path.glob("*.mp4"))  # films stay in memory


def test_a_cell_that_fails_fails_the_run(rerun, tmp_path):
    from nbclient.exceptions import CellExecutionError

    wrong = tmp_path / "wrong.ipynb"
    notebook = json.loads(NOTEBOOKS[0].read_text())
    cell = {
        "cell_type": "code",
        "id": "a",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": "assert 0",
    }
    wrong.write_text(json.dumps({**notebook, "cells": [cell]}))
    with pytest.raises(CellExecutionError):
        rerun.executed(wrong, tmp_path)


@each
def test_it_is_committed_as_it_ran(path):
    """Every code cell in order and without an error: what a reader sees is what there is."""
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds <= {"stream", "execute_result", "display_data"}
    assert not [o for cell in code for o in cell["outputs"] if o.get("name") == "stderr"]


@each
def test_it_says_nothing_of_a_machine(path):
    notebook = json.loads(path.read_text())
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert not any(cell["metadata"] for cell in notebook["cells"])
    films = re.compile(r"base64,[A-Za-z0-9+/=]+|\"image/png\": \"[^\"]+\"")  # letters that may spell anything
    text = films.sub("", path.read_text())
    assert not re.search(r"(?<![\w.<:/])/(tmp|home|root|work|Users|usr|opt|mnt)/", text)
    assert not re.search(r" at 0x[0-9a-f]{6,}", text)


@each
def test_it_is_small(path):
    assert path.stat().st_size < LARGEST


@each
def test_its_links_lead_somewhere(path):
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#:]+?)\)", "".join(cell["source"])):
                assert (path.parent / target).exists(), target
