"""Kill the processes of a sweep at random moments, start others, and count: no trial lost, none doubled.

python benchmarks/reliability/sweep_kills.py
python benchmarks/reliability/sweep_kills.py --kills 60 --storage postgresql://USER@HOST/DB

Trials here only sleep and report, so that kills fall into what processes do to the storage: claiming, heartbeats, reporting,
ending, failing the trials of dead workers. Over a journal, SQLite and, where one is given, a database. Ends with an error if a
slot is not filled by exactly one trial, or a trial is left running.
"""

import argparse
import contextlib
import multiprocessing as mp
import random
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import optuna
from optuna.trial import TrialState

from tightrope.tools.sweep import slots as ts
from tightrope.tools.sweep.slots import TrialSlots, fills_slot
from tightrope.tools.sweep.storage import close_storage, open_storage, open_study, silence_optuna

ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def work(url: str, name: str, trials: int, seed: int) -> None:
    """One process of the sweep: the loop of `Worker`, with trials that take no time to speak of."""
    ts.MAX_FAILURES_OF_SLOT = 10**6  # no slot is given up: kills are not the settings' fault
    random.seed(seed)
    study, _ = open_study(open_storage(url), name, {"kills": True})
    slots = TrialSlots(study, trials, {"x": 0.5}, heartbeat_seconds=0.1, grace_seconds=3.0)
    while slots.done() < trials:
        slots.fail_dead_trials()
        trial = slots.claim()
        if trial is None:
            time.sleep(0.1)
            continue
        with slots.heartbeat(trial), contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.suggest_float("x", 0, 1)
            for step in range(3):
                time.sleep(0.02)
                trial.report(random.random(), step)
            study.tell(trial, random.random(), skip_if_finished=True)


def kill_workers(url: str, kills: int, workers: int, trials: int) -> Counter[str]:
    """Kill a random worker and start another, so many times; then let all of them finish."""
    silence_optuna()
    context, name = mp.get_context("fork"), f"kills-{uuid.uuid4().hex[:8]}"
    seeds = iter(range(10**6))
    processes = [context.Process(target=work, args=(url, name, trials, next(seeds))) for _ in range(workers)]
    for process in processes:
        process.start()
    for _ in range(kills):
        time.sleep(random.uniform(0.02, 0.4 if "://" not in url else 2.0))  # a database takes a second to open
        victim = random.randrange(workers)
        processes[victim].kill()
        processes[victim].join()
        processes[victim] = context.Process(target=work, args=(url, name, trials, next(seeds)))
        processes[victim].start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0, f"{url}: a process ended with {process.exitcode}"
    storage = open_storage(url)
    slots = TrialSlots(optuna.load_study(study_name=name, storage=storage), trials, {})
    found, by_slot = slots.trials(), slots.by_slot()
    close_storage(storage)
    assert sorted(by_slot) == list(range(trials)), f"{url}: slots {sorted(by_slot)}"
    for slot, several in by_slot.items():
        assert sum(map(fills_slot, several)) == 1, f"{url}: slot {slot} has {[t.state.name for t in several]}"
    assert sum(trial.state in ENDED for trial in found) == trials
    return Counter(trial.user_attrs.get(ts.OUTCOME, trial.state.name) for trial in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--storage")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls = [str(Path(folder, "study.journal")), f"sqlite:///{folder}/study.db", *filter(None, [options.storage])]
        for url in urls:
            kind = url.partition("://")[0] if "://" in url else "journal"
            began = time.monotonic()
            ends = kill_workers(url, options.kills, options.workers, options.trials)
            words = ", ".join(f"{count} {how}" for how, count in ends.most_common())
            print(
                f"{kind}: {options.kills} kills of {options.workers} processes: {words}; {time.monotonic() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
