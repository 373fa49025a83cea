"""Does a report tell the truth? Forty short runs, half of them spoilt on purpose, and what their reports say of them.

    python benchmarks/report_rules.py [--only NAME ...] [--table]

The truth of a run is its greedy mean over 500 fresh episodes that its report has not seen, against the target of its task. The
report is asked three times: as it is, without the score after training, and as for a task without a known target. Lines go to
results/report_rules.jsonl, where `--only` replaces some; `--table` prints their tables. About three minutes on one core.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import tightrope as tr
from tightrope.envs.registry import register
from tightrope.logging.report.health import health_findings
from tightrope.training.reports import gathered
from tightrope.training.scoring import save_score

RESULTS = Path(__file__).parent / "results" / "report_rules.jsonl"
EPISODES, TRUTH_SEED = 500, 77_777


class FlippedCartPole(tr.envs.CartPole):
    """CartPole with a reward of the wrong sign."""

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return -super().reward(state, action, next_state)


class FlippedPendulum(tr.envs.Pendulum):
    """Pendulum with a reward of the wrong sign."""

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return -super().reward(state, action, next_state)


FLIPPED = {"FlippedCartPole-v0": FlippedCartPole, "FlippedPendulum-v0": FlippedPendulum}
CART, PENDULUM, ACROBOT, CAR = "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"
TO_THE_END: dict[str, Any] = {"eval_every": 0, "stop_at_return": None}
SHORT_ACROBOT: dict[str, Any] = {"total_timesteps": 200_000}
SHORT_VPG: dict[str, Any] = {"total_timesteps": 320_000}
LATE: dict[str, Any] = {"seed": 13, **TO_THE_END, "total_timesteps": 100_000}
Run = tuple[str, str, dict[str, Any]]  # env, algo, settings

GOOD: dict[str, Run] = {
    **{f"CartPole, seed {seed}": (CART, "ppo", {"seed": seed}) for seed in (11, 12, 13)},
    "CartPole, no stop": (CART, "ppo", {"seed": 14, **TO_THE_END, "total_timesteps": 100_000}),
    "CartPole, long after it is solved": (CART, "ppo", {"seed": 15, **TO_THE_END, "total_timesteps": 400_000}),
    "CartPole, normalised observations": (CART, "ppo", {"seed": 16, "norm_obs": True}),
    "CartPole, evaluations alone": (CART, "ppo", {"seed": 17, "stop_at_return": None, "total_timesteps": 100_000}),
    **{f"Pendulum, seed {seed}": (PENDULUM, "ppo", {"seed": seed}) for seed in (11, 12, 13)},
    **{f"Acrobot, seed {seed}": (ACROBOT, "ppo", {"seed": seed, **SHORT_ACROBOT}) for seed in (11, 12)},
    **{f"MountainCar, seed {seed}": (CAR, "ppo", {"seed": seed}) for seed in (11, 12)},
    **{f"VPG on CartPole, seed {seed}": (CART, "vpg", {"seed": seed, **SHORT_VPG}) for seed in (11, 12)},
    "VPG with a critic": (CART, "vpg", {"seed": 13, "baseline": "critic", **SHORT_VPG}),
    "probe 4": ("Probe4-v0", "ppo", {"seed": 11}),
    "probe 5": ("Probe5-v0", "ppo", {"seed": 11}),
    "probe 5, VPG": ("Probe5-v0", "vpg", {"seed": 11, "num_steps": 8, "total_timesteps": 30_000}),
}
SPOILT: dict[str, Run] = {
    "CartPole, learning rate 1e-7": (CART, "ppo", {**LATE, "learning_rate": 1e-7}),
    "CartPole, learning rate 0.001": (CART, "ppo", {**LATE, "learning_rate": 0.001}),
    "CartPole, learning rate 1": (CART, "ppo", {**LATE, "learning_rate": 1.0}),
    "CartPole, clip 1e-4": (CART, "ppo", {**LATE, "clip_coef": 1e-4}),
    "CartPole, gamma 0": (CART, "ppo", {**LATE, "gamma": 0.0}),
    "CartPole, entropy bonus 10": (CART, "ppo", {**LATE, "ent_coef": 10.0}),
    "CartPole, 12,288 steps": (CART, "ppo", {"seed": 13, **TO_THE_END, "total_timesteps": 12_288}),
    "CartPole, reward flipped": (CART, "ppo", {**LATE, "train_env": "FlippedCartPole-v0"}),
    "CartPole, gradients cut to 1e-6": (CART, "ppo", {**LATE, "max_grad_norm": 1e-6, "learning_rate": 1e-5}),
    "CartPole, no limit on the gradient": (CART, "ppo", {**LATE, "max_grad_norm": None, "learning_rate": 0.3}),
    "Pendulum, gamma 0": (PENDULUM, "ppo", {"seed": 13, "gamma": 0.0}),
    "Pendulum, learning rate 1e-6": (PENDULUM, "ppo", {"seed": 13, "learning_rate": 1e-6}),
    "Pendulum, entropy bonus 10": (PENDULUM, "ppo", {"seed": 13, "ent_coef": 10.0}),
    "Pendulum, reward flipped": (PENDULUM, "ppo", {"seed": 13, "train_env": "FlippedPendulum-v0"}),
    "Acrobot, learning rate 1e-6": (ACROBOT, "ppo", {"seed": 13, "learning_rate": 1e-6, **SHORT_ACROBOT}),
    "MountainCar without shaping": (CAR, "ppo", {"seed": 13, "train_env": None}),
    "VPG, learning rate 1": (CART, "vpg", {"seed": 13, "learning_rate": 1.0, "total_timesteps": 100_000}),
    "VPG, learning rate 1e-6": (CART, "vpg", {"seed": 13, "learning_rate": 1e-6, "total_timesteps": 100_000}),
    "VPG, gamma 0": (CART, "vpg", {"seed": 13, "gamma": 0.0, "total_timesteps": 100_000}),
    "probe 5, learning rate 1e-7": ("Probe5-v0", "ppo", {"seed": 13, "learning_rate": 1e-7}),
}


def line_of(name: str, run: Run, spoilt: bool) -> dict[str, Any]:
    """Train a run and ask its report."""
    env, algo, settings = run
    kind = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        agent = kind(env, **settings, device="cpu", threads=1, video_every=0)
        agent.learn(run_dir=Path(folder) / "run", quiet=True)
        alone = asked(gathered(Path(folder) / "run"))
        save_score(Path(folder) / "run", agent.steps, agent.evaluate(100))
        record = gathered(Path(folder) / "run")
        truth = agent.evaluate(EPISODES, seed=TRUTH_SEED).mean
        target = record.info.target
        assert target is not None
    return {
        "name": name, "env": env, "algo": algo, "settings": settings, "spoilt": spoilt, "target": target.value,
        "truth": truth, "solved": truth >= target.value, "report": asked(record), "without_score": alone,
        "without_target": asked(record, aimed=False), "seconds": round(time.perf_counter() - began, 1),
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


def tables(lines: list[dict[str, Any]]) -> str:
    """One table for each way of asking, then every run."""
    asks = {"report": "the report", "without_score": "without the score", "without_target": "without a target"}
    out = [f"| {len(lines)} runs | task | 'good' | a note | an alarm |", "|---|---|---|---|---|"]
    for ask, words in asks.items():
        for solved in (True, False):
            count = Counter(outcome(line[ask]) for line in lines if line["solved"] == solved)
            cells = [str(count[kind]) for kind in ("good", "note", "alarm")]
            out.append(f"| {words} | {'solved' if solved else 'not solved'} | {' | '.join(cells)} |")
    out += ["", "| run | truth | the report | and |", "|---|---|---|---|"]
    for line in lines:
        _, *others = line["report"]["findings"]
        first = line["report"]["findings"][0] if not line["solved"] else ""
        out.append(
            f"| {line['name']} | {line['truth']:.1f} | {line['report']['headline']} | {' '.join([first, *others])} |"
        )
    return "\n".join(out)


def outcome(answer: dict[str, Any]) -> str:
    return "good" if answer["verdict"] == "good" else "alarm" if answer["alarm"] else "note"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of runs")
    parser.add_argument("--table", action="store_true", help="print the tables of the lines that are there")
    options = parser.parse_args()
    there = {row["name"]: row for row in map(json.loads, RESULTS.read_text().splitlines())} if RESULTS.exists() else {}
    if not options.table:
        for env_id, env in FLIPPED.items():
            register(env_id, env)
        runs = [(name, run, group is SPOILT) for group in (GOOD, SPOILT) for name, run in group.items()]
        for name, run, spoilt in runs:
            if not options.only or name in options.only:
                there[name] = line = line_of(name, run, spoilt)
                print(f"{name}: {line['truth']:.1f}, {line['seconds']} s: {line['report']['headline']}", flush=True)
        RESULTS.write_text("".join(json.dumps(there[name]) + "\n" for name, _, _ in runs if name in there))
    print(tables([*there.values()]))


if __name__ == "__main__":
    main()
