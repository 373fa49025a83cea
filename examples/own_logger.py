"""Your own logger: write the return of every phase and of every evaluation to a CSV file.

With `may_fail` an error in the callback, such as a full disk, is a warning and does not end the run.
"""

import csv
from pathlib import Path

import tightrope as tr


class CSVLogger(tr.Callback):
    may_fail = True

    def __init__(self, path):
        self.path = Path(path)

    def write(self, *cells):
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(cells)

    def on_start(self, run):
        print("training", run.title, "from", run.steps, "to", run.total_steps, "steps")
        if run.steps == 0:  # a new run starts a new file; a resumed one appends
            self.path.unlink(missing_ok=True)
            self.write("what", "steps", "return")

    def on_update(self, state):  # before the evaluation of a phase, which is not told the number of steps
        self.steps = state.steps

    def on_phase(self, row):
        if "charts/episodic_return" in row:  # missing if no episode ended in the phase
            self.write("training", row["step"], row["charts/episodic_return"])

    def on_evaluation(self, result):
        self.write("evaluation", self.steps, result.mean)

    def on_end(self, result):
        print("ended after", result.steps, "steps")


agent = tr.PPO("CartPole-v1", seed=1, total_timesteps=30_000, eval_every=10_000)
agent.learn(quiet=True, callbacks=[CSVLogger("returns.csv")])
print(Path("returns.csv").read_text())
