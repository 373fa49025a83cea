"""The command line: train, sweep, resume, clone, eval, record, play, report, export, envs, check, probe, bench, doctor.

The module of a command is imported when the command is called, so that help and version do not import torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import TypeVar

from ..errors import EnvError, MaskError, NotFinite, RankLost, UsageError, near_matches, printable_lines
from ..output import OutputLost, guarded_output
from ..processes import follow_parent
from ..version import __version__

USAGE = """\
usage: tightrope COMMAND ...

  train ENV     train an agent           tightrope train CartPole-v1
  sweep ENV     search good settings     tightrope sweep CartPole-v1 --trials 30
  resume RUN    continue a run           tightrope resume runs/demo
  clone RUN     imitate a trained agent  tightrope clone runs/teacher --actor-obs camera
  eval RUN      score a trained agent    tightrope eval runs/demo --episodes 100
  record RUN    write a video of it      tightrope record runs/demo --out pole.mp4
  play RUN      play in a browser        tightrope play runs/demo --out play.html
  report RUN    a page about a run, or   tightrope report runs/demo
                about several            tightrope report runs/a runs/b --out both.html
  export RUN    write an ONNX file       tightrope export runs/demo --onnx policy.onnx
  envs          list the environments    tightrope envs
  check ENV     find a bug in an env     tightrope check my_module:MyEnv
  probe         find a bug in the agent  tightrope probe --algo ppo
  bench ENV     measure its speed        tightrope bench CartPole-v1 --num-envs 64 1024
  doctor        look at this machine     tightrope doctor

`tightrope COMMAND --help` lists the options of a command. Documentation: README.md and docs/.
"""

COMMANDS = {  # the module of each command, with a function such as train_main
    "train": "training", "sweep": "sweep", "resume": "resuming", "clone": "training", "eval": "trained", "record": "trained",
    "play": "trained", "report": "trained", "export": "trained", "envs": "tools", "check": "tools", "probe": "tools",
    "bench": "machine", "doctor": "machine",
}  # fmt: skip
OTHER_NAMES = {
    "evaluate": "eval", "test": "eval", "enjoy": "record", "render": "record", "video": "record",
    "learn": "train", "run": "train", "fit": "train", "continue": "resume", "optimize": "sweep", "tune": "sweep",
    "list": "envs", "list-envs": "envs", "benchmark": "bench", "plot": "report", "onnx": "export",
    "imitate": "clone", "bc": "clone",
}  # fmt: skip
TRAINING = ("train", "resume", "sweep")  # they write files, so they keep running if nobody reads their output
EXIT_SECONDS = 2.0  # for an orderly exit after Ctrl-C
LAUNCHED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit. A mistake of the user prints one line and exits with code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    if os.environ.keys() >= LAUNCHED and os.environ["RANK"] != "0":  # only rank 0 prints
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    # not called from a user's program
    own = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own:
        signal.signal(signal.SIGINT, InterruptHandler())
    if argv is None:
        follow_parent()
    try:
        with guarded_output(needed=output_is_the_result(args)):
            code = exit_code(args)
        if own:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is done
    except KeyboardInterrupt:  # a second Ctrl-C
        code = 130
    sys.exit(code)


def output_is_the_result(args: list[str]) -> bool:
    """Whether the output of a command is its result, so that losing the output is an error."""
    shows = any(word in ("-h", "--help", "--print-search") for word in args)
    return shows or not (args and args[0] in TRAINING)


class InterruptHandler:
    """Handles Ctrl-C: the first raises KeyboardInterrupt. Repeats within EXIT_SECONDS are ignored, so that they do not
    interrupt its handling; later ones exit at once."""

    def __init__(self) -> None:
        self.since: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.since is None:
            self.since = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self.since > EXIT_SECONDS:
            os._exit(130)


def call_with_sigint_deferred(load: Callable[[], T]) -> T:
    """Call a function that imports modules and delay Ctrl-C until it returns: an interrupted import may swallow Ctrl-C or leave
    a module half initialised."""
    handler, received = signal.getsignal(signal.SIGINT), list[int]()
    if not isinstance(handler, InterruptHandler):
        return load()
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        return load()
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(received[0], None)


def exit_code(args: list[str]) -> int:
    """Run a command, print its error if it fails, and return the exit code; 0 only if the command completed."""
    try:
        code = dispatch(args)
        sys.stdout.flush()
        return code
    except OutputLost as error:
        if error.reader_left:  # the reader closed the pipe, as `head` does
            return 141  # 128 + SIGPIPE
        complain(error)
        return 1
    except (UsageError, EnvError, NotFinite) as error:
        origin: BaseException = error
        while origin.__cause__ is not None:
            origin = origin.__cause__
        if isinstance(error, EnvError) and not isinstance(origin, (EnvError, MaskError, EOFError, ConnectionError)):
            lines = "".join(traceback.format_exception(origin))  # the traceback of the environment, for its author
            print(printable_lines(lines), end="", file=sys.stderr)
        complain(error)
        return 2 if isinstance(error, UsageError) else 1
    except RankLost as error:
        if not error.printed:
            print(f"tightrope: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tightrope: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:  # raised by user code, or by a signal during an evaluation
        if stop.code not in (None, 0):
            raise
        print("tightrope: exit() was called before the command completed", file=sys.stderr)
        return 1


def complain(error: Exception) -> None:
    """Print an error on one line. If several ranks have the same error, only rank 0 prints it."""
    if os.environ.keys() >= LAUNCHED:
        from ..engine.distributed import print_error

        print_error(str(error))
    else:
        print(f"tightrope: {error}", file=sys.stderr)


def dispatch(args: list[str]) -> int:
    """Import and run a command, and return its exit code."""
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if args[0] in ("-V", "--version", "version"):
        print(f"tightrope {__version__}")
        return 0
    if args[0] not in COMMANDS:
        here = OTHER_NAMES.get(args[0])
        hint = f": here it is called {here}." if here else f".{near_matches(args[0], COMMANDS)}"
        raise UsageError(f"unknown command {args[0]!r}{hint} Give one of: {', '.join(COMMANDS)}")

    def load() -> tuple[Callable[[], AbstractContextManager[object]], Callable[[list[str]], int]]:
        from ..engine.distributed import propagate_errors

        module = importlib.import_module(f".{COMMANDS[args[0]]}", __name__)
        return propagate_errors, getattr(module, f"{args[0]}_main")

    propagate_errors, command = call_with_sigint_deferred(load)
    with propagate_errors():
        return command(args[1:])
