"""Measure a run: metrics of each phase, evaluations during training, `stop_at_return`, and the score after training.

The score after training is taken once the last checkpoint is saved, so that nothing is lost if it fails, and before callbacks
learn that training has ended, so that reports and trackers show it. It is not a row of metrics.jsonl.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..algorithms import ALGORITHMS
from ..engine import State, broadcast_after_work, stream_seed, world
from ..engine.metrics import Reading
from ..envs.registry import import_module_of
from ..envs.training_warnings import STEPS_WITHOUT_END, endless_warning, find_action_mask, mask_in_info, mask_warning
from ..envs.with_memory import without_memory
from ..errors import UsageError, warn
from ..files import Unreadable
from ..logging import CallbackList
from ..models.action_mask import mask_columns
from ..types import Env
from .build import make_env
from .config import Config
from .evaluate import Evaluation, EvaluationOptions, Tick, evaluate_policy
from .own_code import imported, is_import_path
from .plan import reached
from .reports import add_score
from .run_directory import RunDirectory
from .signals import Interrupted, Interrupts
from .user_objects import check_env_object, from_user, name_of

SHOWN_AFTER, SHOWN_EVERY = 1.0, 0.25  # seconds until the progress of an evaluation is shown, and between updates
ASKED_EVERY = 1.0  # seconds between questions to other ranks whether they have received a signal
STANDARD_ERRORS, SHARE = 4, 0.2  # a difference of greedy and sampled returns is reported above both limits
FEWEST = 10  # episodes that a greedy score needs to be compared
ENOUGH = 20  # episodes that the mean return at the end of training needs
AT_THE_END = 0.1  # share of the steps that counts as the end of training

Score = Callable[[Interrupts, Tick], Evaluation]
TotalLoss = Callable[[dict[str, float]], dict[str, float]]  # from the other columns of a row


def options_of(config: Config, state: State) -> EvaluationOptions:
    """The options of evaluations, from the settings of a run."""
    captured = state.runtime.unit == "phase"
    return EvaluationOptions(num_envs=config.run.eval_envs, seconds=config.run.eval_seconds, captured=captured)


def shown_to(callbacks: CallbackList, episodes: int) -> Tick:
    """A function that reports the progress of an evaluation to callbacks, once it has taken a while."""
    due = time.monotonic() + SHOWN_AFTER

    def tick(over: int) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + SHOWN_EVERY
            callbacks.call("on_evaluation_progress", over, episodes)

    return tick


def evaluation_env(env: Any, config: Config, trained_on: Env, num_envs: int) -> tuple[Env, bool]:
    """(the environment to evaluate in that a user gave, whether it was made here and must be closed). A class or factory makes
    `num_envs` Gymnasium environments, which are played in directly; other environments are copied by the evaluation."""
    if isinstance(env, str) and is_import_path(env):
        env = imported(env)
    if isinstance(env, str):
        import_module_of(env)
        found = make_env(config, env, 1, scoring=True)
    else:
        check_env_object(env)
        in_turn = config.changed(vectorization_mode="sync") if config.run.vectorization_mode == "async" else config
        found = from_user(env, in_turn, num_envs if callable(env) else 1)
    made_here = found is not env and not hasattr(env, "num_envs")  # a vector environment stays open for its owner
    if (found.observation, found.action) != (trained_on.observation, trained_on.action):
        if made_here:
            found.close()
        name = env if isinstance(env, str) else name_of(found)
        raise UsageError(f"env {name!r} has other spaces than {config.env!r}, on which this agent was trained")
    return found, made_here


class Log:
    """Writes a row of metrics for each phase to the metrics file and the callbacks. The metrics of a phase are read while the
    device works on the next phase, so that neither waits."""

    def __init__(
        self, state: State, callbacks: CallbackList, run: RunDirectory | None, late: int,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.callbacks, self.run, self.say, self.late = callbacks, run, say, late  # late: phases by which metrics lag
        env = without_memory(state.env)
        self.endless = endless_warning(env)  # the warning if no episode ends for long
        applied = mask_columns(env.observation, env.action) is not None
        self.unmasked = None if applied or find_action_mask(env) else env  # steps of this env may still return masks
        self.num_envs = state.env.num_envs * world().size
        self.unread: list[tuple[dict[str, float], Reading, TotalLoss]] = []
        self.began, self.seconds_before, self.steps_before = time.perf_counter(), state.seconds, state.steps
        self.recent: deque[tuple[int, float, float]] = deque()  # (step, episodes, sum of returns) of recent phases
        self.stopped = 0.0  # seconds of evaluation and saving, excluded from the speed

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def add(self, state: State, reading: Reading, total_loss: TotalLoss) -> dict[str, float]:
        """Add a row for the phase that was just run; the caller may add columns."""
        row: dict[str, float] = {"step": state.steps, "phase": state.phase}
        self.unread.append((row, reading, total_loss))
        state.seconds = self.seconds_before + self.elapsed
        return row

    def forget_after(self, phase: int) -> None:
        """Drop the rows of phases that were undone."""
        self.unread = [unread for unread in self.unread if unread[0]["phase"] <= phase]

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Exclude the time spent inside from the training speed."""
        began = time.perf_counter()
        yield
        self.stopped += time.perf_counter() - began

    def report(self, everything: bool = False) -> None:
        """Write the rows whose metrics have arrived, or wait and write all of them."""
        while len(self.unread) > (0 if everything else self.late):
            row, reading, total_loss = self.unread.pop(0)
            row |= reading.row()
            row |= total_loss(row)
            row["charts/SPS"] = (row["step"] - self.steps_before) / (self.elapsed - self.stopped)
            step, episodes = int(row["step"]), row["charts/episodes"]
            self.recent.append((step, episodes, episodes * row.get("charts/episodic_return", 0.0)))
            while self.recent[0][0] < (1 - AT_THE_END) * step:
                self.recent.popleft()
            self._warn(step, episodes)
            self.write(row)

    def _warn(self, step: int, episodes: float) -> None:
        """Warn once if no episode has ended for long, and once if steps return action masks."""
        endless = step - self.steps_before >= STEPS_WITHOUT_END * self.num_envs
        if self.endless is not None and (episodes or endless):
            if not episodes:
                self.say(f"note: {self.endless}")
            self.endless = None
        if self.unmasked is not None and (where := mask_in_info(self.unmasked)):
            self.say(f"note: {mask_warning(self.unmasked, where)}")
            self.unmasked = None

    def write(self, row: dict[str, float]) -> None:
        """Write a row to the metrics file and the callbacks."""
        row["time"] = self.seconds_before + self.elapsed
        if self.run is not None:
            self.run.log(row)
        self.callbacks.call("on_phase", row)

    @property
    def last_return(self) -> float | None:
        """The mean return of episodes that ended in the last tenth of training; None if there were too few."""
        episodes = sum(count for _, count, _ in self.recent)
        return sum(total for _, _, total in self.recent) / episodes if episodes >= ENOUGH else None


@dataclass
class Evaluations:
    """Runs the evaluations during training and keeps their results."""

    state: State
    config: Config
    env: Env
    callbacks: CallbackList
    interrupts: Interrupts
    say: Callable[[str], None]
    made: list[tuple[int, Evaluation]] = field(default_factory=list)  # (steps, result)
    best: float | None = None  # a new best mean return that no checkpoint has yet
    signal: int = 0  # the number of the signal that ended the last evaluation, or 0

    def make(self) -> dict[str, float]:
        """Evaluate, and return the columns for the row of metrics; none if a signal ended the evaluation, which is then run
        when training resumes."""
        state, found = self.state, self._found()
        state.unevaluated = not isinstance(found, Evaluation)
        if not isinstance(found, Evaluation):
            self.signal = found
            self.say(f"the evaluation after {state.steps:,} steps was interrupted; it runs when training resumes")
            return {}
        self.made.append((state.steps, found))
        if found.requested:
            self.say(f"evaluation after {state.steps:,} steps: {found.note}")
        if found.representative and found.mean > state.best_score:
            self.best = state.best_score = found.mean
        state.solved = state.solved or reached(state, self.config)
        self.callbacks.call("on_evaluation", found)
        return found.metrics

    def new_best(self) -> float | None:
        """The score of the last evaluation if it was the best so far; None on the next call."""
        best, self.best = self.best, None
        return best

    def _found(self) -> Evaluation | int:
        """Evaluate on rank 0 and return the result on all ranks. Its episodes depend only on the seed and the phase. A signal
        to any rank ends the evaluation; all ranks then return the number of the signal."""
        said = json.loads(broadcast_after_work(self._evaluate_on_rank0, lambda: self.interrupts.received or 0))
        return said if isinstance(said, int) else Evaluation(**said)

    def _evaluate_on_rank0(self, requested_signal: Callable[[], float]) -> bytes:
        state, config, interrupts = self.state, self.config, self.interrupts
        episodes, due = config.run.eval_episodes, time.monotonic() + ASKED_EVERY
        show = shown_to(self.callbacks, episodes)

        def tick(over: int) -> None:
            nonlocal due
            show(over)
            if world().is_distributed and time.monotonic() >= due:
                with interrupts.deferred():
                    number = requested_signal()
                if number:
                    raise Interrupted(int(number))
                due = time.monotonic() + ASKED_EVERY

        seed = stream_seed(config.run.seed, "evaluation", state.phase)
        try:
            found = evaluate_policy(state.policy, self.env, episodes, seed, options_of(config, state), interrupts, tick)
        except Interrupted as signal:
            return json.dumps(signal.number).encode()
        return json.dumps(asdict(found)).encode()


def run_missed_evaluation(evaluations: Evaluations, log: Log, run: RunDirectory | None) -> int:
    """Run the evaluation that was interrupted when the run stopped, with the same episodes, and write its row of metrics.
    Returns the signal that interrupts it again, or 0."""
    state, config = evaluations.state, evaluations.config
    if not state.unevaluated or not config.run.eval_every:
        state.unevaluated = False
        return 0
    with log.clock_stopped():
        metrics = evaluations.make()
    if metrics:
        log.write({"step": state.steps, "phase": state.phase, **metrics})
        if run is not None:
            run.save(state, config, evaluations.new_best())
    return evaluations.signal


def is_complete(state: State, config: Config) -> bool:
    """Whether training is complete: all phases are done or `stop_at_return` is reached, and no evaluation is missing."""
    if state.unevaluated and config.run.eval_every:
        return False
    return ALGORITHMS[config.algo].finished(state, config.algorithm) or reached(state, config)


def last_score(
    score: Score, episodes: int, state: State, callbacks: CallbackList, run: RunDirectory | None, interrupts: Interrupts
) -> Evaluation | None:
    """Take the score after training and save it; None if a signal interrupts it."""
    callbacks.call("on_trained", state)
    try:
        with interrupts.raised():
            found = score(interrupts, shown_to(callbacks, episodes))
    except KeyboardInterrupt:
        return None
    if run is not None:
        save_score(run.path, state.steps, found)
    return found


def save_score(run_dir: Path, step: int, score: Evaluation) -> None:
    """Save a score in the run's directory, for its report. An error of the disk is only a warning."""
    try:
        add_score(run_dir, step, score)
    except (OSError, Unreadable) as error:
        warn(f"the score is not in the report: {error}")


def compare_with_sampled(greedy: Evaluation, in_training: float | None) -> str:
    """A clause about the return of sampled actions if it differs much from that of greedy ones; otherwise empty."""
    if in_training is None or not greedy.representative or len(greedy.returns) < FEWEST:
        return ""
    apart = abs(greedy.mean - in_training)
    noise = STANDARD_ERRORS * greedy.std / math.sqrt(len(greedy.returns))
    if not apart > max(noise, SHARE * max(abs(greedy.mean), abs(in_training))):
        return ""
    than = "worse" if greedy.mean < in_training else "better"
    return f"; sampled actions returned {in_training:.2f} at the end of training: taking the likeliest is {than}"
