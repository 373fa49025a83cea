"""The space of a hybrid action: its parts in order, and which of them are used under which condition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from ..errors import UsageError
from ..types import Box, Composite, Discrete, MultiDiscrete, Spec

LARGEST = 1 << 24  # options of a choice: float32 holds all whole numbers up to this one
Use = tuple[int, int, tuple[int, ...]]  # a part, the choice that decides on it, the values of the choice that use it
Parts = tuple[tuple[str, Spec], ...]


def flat_parts(action: Spec) -> Parts:
    """The plain parts of an action with their names, those of nested parts joined by "/"; one without a name if it is plain."""
    return tuple(nested_parts(action, "")) if isinstance(action, Composite) else (("", action),)


def nested_parts(spec: Composite, path: str) -> Iterator[tuple[str, Spec]]:
    for name, part in spec.parts:
        if isinstance(part, Composite):
            yield from nested_parts(part, f"{path}{name}/")
        else:
            yield f"{path}{name}", part


def nested_conditions(spec: Composite, path: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield from ((f"{path}{part}", f"{path}{choice}", tuple(values)) for part, choice, values in spec.conditions)
    for name, part in spec.parts:
        if isinstance(part, Composite):
            yield from nested_conditions(part, f"{path}{name}/")


def flat_action(action: Spec) -> Spec:
    """The action space without nesting: parts and conditions by their joined names."""
    if not isinstance(action, Composite) or not any(isinstance(part, Composite) for _, part in action.parts):
        return action
    return Composite(flat_parts(action), action.dtype, tuple(nested_conditions(action, "")))


def check_hybrid(action: Composite) -> None:
    """Raise UsageError unless every part has a name of its own and a head, and every condition holds of such parts."""
    parts = flat_parts(action)
    names = [name for name, _ in parts]
    if not parts:
        raise UsageError("an action of no parts is empty: give at least one")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"an action has two parts called {twice[0]!r}: rename one of them")
    for name, part in parts:
        if not isinstance(part, (Discrete, MultiDiscrete)) and not (
            isinstance(part, Box) and part.dtype.is_floating_point
        ):
            fix = "give Discrete, MultiDiscrete or a Box of real numbers"
            raise UsageError(f"the action's part {name!r} of {part} is not supported: {fix}")
        if max(options(part), default=0) > LARGEST:
            raise UsageError(f"the action's part {name!r} has more than {LARGEST:,} options: give fewer")
    uses_of(action)


def options(action: Spec) -> tuple[int, ...]:
    """The number of options of each choice; empty for actions that are not choices."""
    if isinstance(action, Composite):
        return tuple(n for _, part in flat_parts(action) for n in options(part))
    if isinstance(action, Discrete):
        return (action.n,)
    return action.n if isinstance(action, MultiDiscrete) else ()


def uses_of(action: Composite) -> tuple[Use, ...]:
    """The conditions by the numbers of the parts. If a choice is conditional itself, its own condition stands before."""
    parts = flat_parts(action)
    names = [name for name, _ in parts]
    uses: dict[int, Use] = {}
    for condition in nested_conditions(action, ""):
        part, choice, values = condition

        def refuse(problem: str, shown: object = condition) -> NoReturn:
            raise UsageError(f"the action's condition {shown} {problem}")

        decided = [i for i, name in enumerate(names) if name == part or name.startswith(f"{part}/")]
        if not decided or choice not in names:
            refuse(f"names {part if not decided else choice!r}: its parts are {', '.join(names)}")
        number = names.index(choice)
        spec = parts[number][1]
        if not isinstance(spec, Discrete):
            refuse(f"depends on {choice!r}, which is not Discrete: let a Discrete part decide")
        if not values or not all(type(value) is int and 0 <= value < spec.n for value in values):
            refuse(f"has values outside 0 .. {spec.n - 1}: give those of {choice!r} that use {part!r}")
        if taken := [i for i in decided if i in uses]:
            refuse(f"is the second for {names[taken[0]]!r}: give each part one")
        uses |= {i: (i, number, tuple(dict.fromkeys(values))) for i in decided}
    ordered: list[Use] = []
    while uses:
        ready = [use for use in uses.values() if use[1] not in uses]
        if not ready:
            circle = ", ".join(repr(names[i]) for i in uses)
            raise UsageError(f"the action's conditions depend on each other ({circle}): drop one of them")
        ordered += ready
        uses = {i: use for i, use in uses.items() if use not in ready}
    return tuple(ordered)
