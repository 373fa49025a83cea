"""docs/scores.md and its pictures, made of the lines in benchmarks/results. Run by `python benchmarks/suite.py page`."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from suite import HERE, SUITES, lines_of, score_of

from tightrope.logging.report.statistics import at_common_steps, iqm_interval

DOCS = HERE.parent / "docs"
PICTURES = DOCS / "images" / "scores"

FEWEST = 5  # seeds of an interquartile mean

Row = dict[str, Any]


def newest(rows: list[Row]) -> list[Row]:
    """The runs with the settings of the last line, in the order of their seeds."""
    return sorted((row for row in rows if row["digest"] == rows[-1]["digest"]), key=lambda row: row["seed"])


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def score_table(tasks: dict[str, list[Row]], published: dict[str, dict[str, float]], sources: Row) -> list[str]:
    """Scores of each task beside those of others."""
    shown = [key for key in sources if any(key in published.get(task, {}) for task in tasks)]
    names = [sources[key]["name"] for key in shown]
    head = ["task", "steps", "seeds", "mean", "IQM", "95 % interval", "lowest to highest", *names]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for task, rows in tasks.items():
        scores, taken = np.array([score_of(row)["mean"] for row in rows]), [row["steps"] for row in rows]
        iqm, low, high = iqm_interval([scores])
        enough = len(rows) >= FEWEST
        others = [number(published[task][key]) if key in published.get(task, {}) else "" for key in shown]
        best = max(published.get(task, {}).values(), default=float("inf"))
        mean = number(float(scores.mean()))
        cells = [
            task, " to ".join(f"{steps:,}" for steps in sorted({min(taken), max(taken)})), str(len(rows)),
            f"**{mean}**" if scores.mean() >= best else mean,
            number(iqm) if enough else "", f"{number(low)} to {number(high)}" if enough else "",
            f"{number(scores.min())} to {number(scores.max())}",
            *others,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def seed_table(tasks: dict[str, list[Row]]) -> list[str]:
    """Every run."""
    lines = ["| task | seeds | mean of each | last 100 training episodes of each | seconds a run | machine |"]
    lines.append("|---|---|---|---|---|---|")
    for task, rows in tasks.items():
        greedy = ", ".join(number(score_of(row)["mean"]) for row in rows)
        last = ", ".join("-" if row["last_100"] is None else number(row["last_100"]) for row in rows)
        seeds = ", ".join(str(row["seed"]) for row in rows)
        seconds = float(np.median([row["seconds"] for row in rows]))
        where = {
            f"{row['gpu'] or 'CPU'}, {row['cores']} cores" if row["device"] != "cpu" else f"one of {row['cores']} cores"
            for row in rows
        }
        lines.append(f"| {task} | {seeds} | {greedy} | {last} | {seconds:,.0f} | {'; '.join(sorted(where))} |")
    return lines


def picture(name: str, tasks: dict[str, list[Row]]) -> None:
    """Learning curves: the mean over seeds, and a band from the lowest to the highest."""
    from matplotlib.figure import Figure

    columns = min(3, len(tasks))
    height = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * height), layout="constrained")
    axes = np.atleast_1d(figure.subplots(height, columns, squeeze=False)).ravel()
    for axis, (task, rows) in zip(axes, tasks.items(), strict=False):
        curves = [
            (np.array(x, float), np.array(y, float)) for x, y in (zip(*row["curve"], strict=True) for row in rows)
        ]
        steps, values = at_common_steps(curves, 100)
        if len(steps):
            unit, name_of_unit = (1e6, "million") if steps[-1] >= 5e5 else (1e3, "thousand")
            axis.fill_between(steps / unit, values.min(0), values.max(0), alpha=0.25, linewidth=0)
            axis.plot(steps / unit, values.mean(0))
            axis.set_xlabel(f"{name_of_unit} steps", fontsize=8)
            axis.locator_params(axis="x", nbins=6)
        axis.set_title(f"{task}, {len(rows)} {'seed' if len(rows) == 1 else 'seeds'}", fontsize=10)
        axis.set_ylabel("return in training", fontsize=8)
        axis.grid(alpha=0.3)
    for axis in axes[len(tasks) :]:
        axis.set_visible(False)
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / f"{name}.png", dpi=110)


def of_suites() -> dict[str, tuple[Row, dict[str, list[Row]]]]:
    """Suites with their runs by task, by name. Left out are searches and suites that have not been run."""
    suites: dict[str, tuple[Row, dict[str, list[Row]]]] = {}
    for path in sorted(SUITES.glob("*.yaml")):
        suite: Row = yaml.safe_load(path.read_text())
        if suite.get("recipes"):
            continue
        found: dict[str, list[Row]] = defaultdict(list)
        for row in lines_of(path):
            found[row["task"]].append(row)
        if tasks := {task: newest(found[task]) for task in suite["tasks"] if task in found}:
            suites[path.stem] = suite, tasks
    return suites


def page() -> str:
    """The text of the page. Its pictures are made by `write_page`."""
    published = yaml.safe_load((HERE / "results" / "published.yaml").read_text())
    head, tail = (SUITES / "page.md").read_text().split("{results}\n")
    parts = [head]
    for name, (suite, tasks) in of_suites().items():
        beside = published.get(suite.get("algo", "ppo"), {})
        parts += [f"## {suite['title']}", "", f"{suite['about']} `python benchmarks/suite.py run {name}`.", ""]
        parts += [*score_table(tasks, beside, published["sources"]), "", *seed_table(tasks), ""]
        parts += [f"![Learning curves: {name}](images/scores/{name}.png)", ""]
    parts += [tail, "## Where the published figures come from", ""]
    parts += [
        f"- {s['name']} ({s['where']}): tasks {s['versions']}; {s['how']}." for s in published["sources"].values()
    ]
    return "\n".join(parts) + "\n"


def write_page() -> None:
    for name, (_, tasks) in of_suites().items():
        picture(name, tasks)
    (DOCS / "scores.md").write_text(page())
    print(f"wrote {Path('docs') / 'scores.md'}")
