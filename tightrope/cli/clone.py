"""The command clone: behaviour cloning as a start for training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..agent import agent_class
from ..errors import UsageError, printable
from ..saved import check_arguments
from ..training.checkpoint_reader import find
from ..training.config import setting_types, unknown_setting
from ..training.demonstrations import is_file
from ..training.run_directory import new_run_dir
from ..training.user_objects import is_import_path
from ..types import Settings
from .arguments import flag_types, peek_flag, read_arguments, show_help, wants_help


@dataclass(kw_only=True)
class CloneOptions:
    source: Annotated[Path, "RUN"]
    """Run of the teacher, or a .npz or .safetensors file with arrays obs and action."""
    env: str | None = None
    """Environment of the student, with the spaces of the teacher's; the teacher's if not given."""
    algo: str = "ppo"
    """Algorithm that the student will be trained with: ppo or vpg."""
    run_dir: Path | None = None
    """Directory of the student; runs/<env>__<algo>__<seed>__<time> if not given."""
    steps: int = 100_000
    """Steps that the teacher takes."""
    epochs: int = 10
    """Passes over these steps, or over the file."""
    clone_rate: float = 3e-3
    """Step size of Adam while imitating, which decays to 0."""
    quiet: bool = False
    """Do not evaluate the student."""


def clone_main(args: list[str]) -> int:
    """Train a student to act as a teacher does, and save it as a run, from which `train --init-from` starts.

    The teacher may see more: the student sees --actor-obs. The settings of `tightrope train` set the student up. Example:
    tightrope clone runs/teacher --actor-obs camera --run-dir runs/student
    """
    if wants_help(args):
        return show_help("clone", clone_main.__doc__, CloneOptions)
    if not args or args[0].startswith("-"):
        raise UsageError("clone needs a run or a file first, such as `tightrope clone runs/teacher`")
    source, algo = Path(args[0]), peek_flag(args, "--algo") or "ppo"
    own = flag_types(CloneOptions)
    types = {**setting_types(algo), **own}
    words, flags = read_arguments(args[1:], types, lambda name: unknown_setting(name, algo, types))
    if words:
        raise UsageError(f"one argument too many: {words[0]!r}. Give one run or file, then flags")
    options = CloneOptions(source=source, **{name: flags.pop(name) for name in own if name in flags})
    env = options.env or teacher_env(source)
    inherited = {} if options.env or is_file(source) else teacher_settings(source, flags)
    with agent_class(algo)(env, **inherited | flags) as agent:
        run_dir = new_run_dir(options.run_dir, agent.config)
        result = agent.imitate(source, options.steps, options.epochs, options.clone_rate)
        agent.save(run_dir)
        print(printable(f"{env} as {source}: {result}"))
        if not options.quiet and agent.config.run.eval_episodes:
            score = agent.evaluate(agent.config.run.eval_episodes, eval_seconds=agent.config.run.eval_seconds)
            print(printable(f"{env}: greedy return {score}"))
        print(printable(f"saved in {run_dir}; `tightrope resume {run_dir}` trains it further with the same settings"))
    return 0


def teacher_settings(source: Path, flags: Settings) -> Settings:
    """The settings of a teacher's environment, which the student gets unless flags set them."""
    run = find(source).config.run
    if "wrappers" not in flags and run.wrappers:
        names = " ".join(map(str, run.wrappers))
        raise UsageError(f"{source} was trained with wrappers {names}: give them, as in --wrappers {names}")
    if "env_kwargs" not in flags:
        check_arguments(run.env_kwargs)
    return {"env_kwargs": run.env_kwargs, "max_episode_steps": run.max_episode_steps}


def teacher_env(source: Path) -> str:
    """The id of the environment of a teacher's run."""
    if is_file(source):
        raise UsageError(f"{source} is a file and names no environment: give --env, as in --env CartPole-v1")
    env = find(source).config.env
    if is_import_path(env):
        raise UsageError(f"{source} was trained on {env}, which a file may not import: give it, as in --env {env}")
    return env
