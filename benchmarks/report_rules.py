"""Does a report tell the truth? Three sets of forty short runs, half of them spoilt on purpose, and what their reports say.

    python benchmarks/report_rules.py run [--only NAME ...]     # trains what is missing, and asks every report again
    python benchmarks/report_rules.py table                     # prints the tables, and a line for each run
    python benchmarks/report_rules.py page                      # writes the tables into docs/benchmarks.md

The truth of a run is its greedy mean over 500 fresh episodes that its report has not seen, against the target of its task. The
report is asked three times: as it is, without the score after training, and as for a task without a known target. Lines go to
results/report_rules.jsonl. About fifteen minutes on one core; runs that are kept (`--kept`) are not trained again.
"""

import argparse
import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from report_runs import OWN, SETS, Run

import tightrope as tr
from tightrope.envs.registry import register
from tightrope.logging.report.health import health_findings
from tightrope.training.reports import gathered
from tightrope.training.scoring import save_score

RESULTS = Path(__file__).parent / "results" / "report_rules.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- made by report_rules.py -->", "<!-- end -->"
EPISODES, TRUTH_SEED = 500, 77_777
Line = dict[str, Any]


def line_of(name: str, run: Run, kept: Path) -> Line:
    """Train a run, unless it was, and ask its report."""
    env, algo, settings = run
    folder = kept / re.sub(r"\W+", "-", name)
    if not (folder / "truth.json").exists():
        began = time.process_time()
        agent = {"ppo": tr.PPO, "vpg": tr.VPG}[algo](env, **settings, device="cpu", threads=1, video_every=0)
        agent.learn(run_dir=folder, quiet=True)
        save_score(folder, agent.steps, agent.evaluate(100))
        truth = agent.evaluate(EPISODES, seed=TRUTH_SEED).mean
        told = {"truth": truth, "seconds": round(time.process_time() - began, 1)}
        (folder / "truth.json").write_text(json.dumps(told))
    told, record = json.loads((folder / "truth.json").read_text()), gathered(folder)
    target, files = record.info.target, record.files
    assert target is not None, name
    return {
        "name": name, "env": env, "algo": algo, "settings": settings, "target": target.value, "truth": told["truth"],
        "solved": told["truth"] >= target.value, "report": asked(record),
        "without_score": asked(replace(record, files=replace(files, scores=[]))),
        "without_target": asked(record, aimed=False), "seconds": told["seconds"],
    }  # fmt: skip


def asked(record: Any, aimed: bool = True) -> dict[str, Any]:
    """What a report says: its verdict and its findings."""
    target = record.info.target if aimed else None
    verdict, *found = health_findings(
        record.columns, record.info.settings, target, record.last_score, record.last_error
    )
    words = [one.what for one in (verdict, *found)]
    alarm = "warning" in {one.level for one in (verdict, *found)}
    return {"verdict": verdict.level, "alarm": alarm, "headline": verdict.headline, "findings": words}


# the tables --------------------------------------------------------------------------------------------------------------


def tables(lines: list[Line], name: str) -> list[str]:
    """One table for each way of asking, of one set of runs."""
    asks = {"report": "the report", "without_score": "without the score", "without_target": "without a target"}
    out = [f"| {name} set, {len(lines)} runs | task | 'good' | a note | an alarm |", "|---|---|---|---|---|"]
    for ask, words in asks.items():
        for solved in (True, False):
            count = Counter(outcome(line[ask]) for line in lines if line["solved"] == solved)
            cells = [str(count[kind]) for kind in ("good", "note", "alarm")]
            out.append(f"| {words} | {'solved' if solved else 'not solved'} | {' | '.join(cells)} |")
    return out


def runs_table(lines: list[Line]) -> list[str]:
    """Every run."""
    out = ["| run | truth | the report | and |", "|---|---|---|---|"]
    for line in lines:
        first, *others = line["report"]["findings"]
        words = " ".join([first] * (not line["solved"]) + others)
        out.append(f"| {line['name']} | {line['truth']:.1f} | {line['report']['headline']} | {words} |")
    return out


def outcome(answer: dict[str, Any]) -> str:
    return "good" if answer["verdict"] == "good" else "alarm" if answer["alarm"] else "note"


def page_text(lines: list[Line]) -> str:
    """The tables of both sets for the page."""
    parts = [tables([x for x in lines if x["set"] == name], name) for name in SETS]
    return "\n\n".join("\n".join(part) for part in parts)


def write_page(lines: list[Line]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page_text(lines)}\n\n{END}{after}")


def read_lines() -> list[Line]:
    return [json.loads(row) for row in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "table", "page"])
    parser.add_argument("--kept", type=Path, default=Path("runs/report_rules"), help="where the runs are kept")
    parser.add_argument("--only", nargs="*", help="names of runs or sets")
    options = parser.parse_args()
    there = {(row["set"], row["name"]): row for row in read_lines()}
    if options.command == "run":
        for env_id, env in OWN.items():
            register(env_id, env)
        runs = [
            (key, name, run) for key, groups in SETS.items() for group in groups.values() for name, run in group.items()
        ]
        for key, name, run in runs:
            if not options.only or {key, name} & {*options.only}:
                line = {"set": key, "spoilt": name in SETS[key][True], **line_of(name, run, options.kept / key)}
                there[key, name] = line
                print(f"{name}: {line['truth']:.1f}, {line['seconds']} s: {line['report']['headline']}", flush=True)
        kept = [there[key, name] for key, name, _ in runs if (key, name) in there]
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in kept))
    lines = read_lines()
    if options.command == "page":
        write_page(lines)
    else:
        print(page_text(lines), *runs_table(lines), sep="\n")


if __name__ == "__main__":
    main()
