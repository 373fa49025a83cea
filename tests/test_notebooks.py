"""The notebooks run from the first cell to the last, with the assertions inside them, and are clean as they are committed."""

import base64
import io
import json
import re
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
from run_helpers import loaded

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LARGEST = 600_000  # bytes: GitHub shows no notebook that is much larger
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def rerun() -> ModuleType:
    pytest.importorskip("nbclient")
    return loaded(ROOT / "examples" / "rerun.py")


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
def test_its_films_run_smoothly(path):
    av = pytest.importorskip("av")
    films = re.findall(r"data:video/mp4;base64,([A-Za-z0-9+/=]+)", path.read_text())
    assert films
    for film in films:
        with av.open(io.BytesIO(base64.b64decode(film))) as file:
            assert 20 <= file.streams.video[0].average_rate <= 60


def test_moments_of_a_film_leave_out_its_end_and_its_words():
    pytest.importorskip("av")
    pictures = loaded(ROOT / "examples" / "pictures.py")
    words, held = 24, 12
    frames = [np.full((80 + words, 160, 3), 10 * i, np.uint8) for i in range(11)]
    strip = pictures.strip(
        pictures.film([*frames, *[np.full_like(frames[0], 250)] * held]), every=4, count=3, width=160
    )
    shown = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", strip._repr_svg_())
    moments = [cv2.imdecode(np.frombuffer(base64.b64decode(one), np.uint8), cv2.IMREAD_COLOR) for one in shown]
    assert [round(moment.mean(), -1) for moment in moments] == [0, 50, 100]
    assert {moment.shape for moment in moments} == {(80, 160, 3)}
    assert re.findall(r">(step \d+)<", strip._repr_svg_()) == ["step 0", "step 20", "step 40"]


@each
def test_its_links_lead_somewhere(path):
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#:]+?)\)", "".join(cell["source"])):
                assert (path.parent / target).exists(), target
