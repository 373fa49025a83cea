"""Pictures of environments of Gymnasium, which draw their present state and no observations."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from ...draw import shrink
from ...errors import UsageError, one_line
from ..step_arrays import Array
from .gym_workers import SingleEnv
from .mujoco import rendering_problem


def pictures(name: str, envs: Sequence[SingleEnv]) -> Array:
    """One frame of each; UsageError if there is none."""
    for env in envs:
        follow_body(env)
    try:
        frames: list[Any] = [env.render() for env in envs]
    except NotImplementedError:
        frames = [None]
    except Exception as error:
        raise UsageError(f"env {name!r} cannot be drawn here: {rendering_problem(one_line(error))}") from None
    if any(not isinstance(frame, np.ndarray) for frame in frames):
        raise UsageError(
            f"env {name!r} does not draw itself: give it a render() that returns pixels (H, W, 3) in render_mode 'rgb_array'"
        )
    return np.stack([shrink(frame) for frame in frames])


def follow_body(env: SingleEnv) -> None:
    """Let the camera of a MuJoCo environment follow the body, if its model has such a camera and no other was chosen."""
    renderer, spec = getattr(env.unwrapped, "mujoco_renderer", None), env.spec
    if (
        renderer is None
        or getattr(renderer, "camera_id", None) != -1
        or (spec and {"camera_id", "camera_name"} & {*spec.kwargs})
    ):
        return
    import mujoco

    renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")  # -1 without one


def in_drawing_mode(env: SingleEnv, drawn: bool, factory: Callable[..., Any] | None = None) -> SingleEnv:
    """The environment, made again with render_mode rgb_array where it must draw and can be made again."""
    if not drawn or env.render_mode == "rgb_array":
        return env
    if factory is not None and "render_mode" in signature_parameters(factory):
        env.close()
        return factory(render_mode="rgb_array")
    if env.spec is not None:
        with contextlib.suppress(ValueError):  # a wrapper that does not say how it was made
            return gymnasium.make(env.spec, render_mode="rgb_array")
    return env


def signature_parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a callable; none where its signature cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
