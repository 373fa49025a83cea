"""The contract of an environment, as checks that take an env factory: `factory(num_envs=, max_episode_steps=, seed=)`.

CHECKS hold for every `Env`; an adapter's tests run those that apply, `checks_but(...)`, on a factory of its own. What an
engine does not claim to do is skipped with its reason. TENSOR_CHECKS look inside a `TensorEnv`, at its methods and its state.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tightrope.draw import draw_observations
from tightrope.envs import ENVS, TensorEnv, make, validate
from tightrope.envs import tensor as tensor_env
from tightrope.envs.adapters.groups import Grouped
from tightrope.envs.adapters.gym import GymVectorEnv
from tightrope.errors import UsageError
from tightrope.types import Box, Composite, Env, Spec, Step

Factory = Callable[..., Env]
aten = torch.ops.aten


class HostRead(AssertionError):
    """A tensor was read, or made from data, on the host."""


class _ReadingOperators(TorchDispatchMode):
    READS = (
        aten._local_scalar_dense, aten.is_nonzero, aten.nonzero, aten.nonzero_numpy, aten.argwhere, aten.masked_select,
        aten.equal, aten.allclose, aten._unique2, aten.unique_consecutive, aten.unique_dim, aten.repeat_interleave,
        aten.bincount,
    )  # fmt: skip
    INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = func.overloadpacket
        if operator in self.READS:
            raise HostRead(str(func))
        if operator in self.INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            raise HostRead(f"{func} with a mask has a size that only the host can know")
        if operator is aten.lift_fresh and args[0].dim() > 0:
            raise HostRead("a tensor made from Python numbers is a copy from the host")
        return func(*args, **(kwargs or {}))


class _ReadingMethods(TorchFunctionMode):
    READS = (Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.READS:
            raise HostRead(func.__name__)
        return func(*args, **(kwargs or {}))


class no_host_reads:
    """Inside this context, whatever would make a device wait for the host raises HostRead, on any device."""

    def __enter__(self) -> None:
        self._methods, self._operators = _ReadingMethods(), _ReadingOperators()
        self._methods.__enter__()
        self._operators.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._operators.__exit__(*error)
        self._methods.__exit__(*error)


# shorthands -------------------------------------------------------------------------------------------------------------


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    """The one line of the UsageError that a call raises."""
    with pytest.raises(UsageError) as error:
        call(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def random_actions(env: Env, steps: int, seed: int = 0) -> Tensor:
    """(steps, N, ...) valid actions."""
    return random_members(env.action, (steps, env.num_envs), torch.Generator().manual_seed(seed)).to(env.device)


def random_members(spec: Spec, rows: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if isinstance(spec, Composite):
        return torch.cat(
            [random_members(part, rows, generator).reshape(*rows, -1).float() for _, part in spec.parts], -1
        )
    unit = torch.rand(*rows, *spec.shape, generator=generator)
    if isinstance(spec, Box):
        low, high = (torch.tensor(bound).clamp(-1e3, 1e3) for bound in (spec.low, spec.high))
        return low + unit.to(spec.dtype) * (high - low)
    return (unit * torch.tensor(spec.n)).long()


def random_noise(env: Env, steps: int, seed: int = 0) -> Tensor:
    """(steps, N, R) what a reset consumes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(steps, env.num_envs, env.noise_size, generator=generator).to(env.device)


def run(env: Env, actions: Tensor, noise: Tensor | None = None) -> list[Step]:
    return [env.step(a, None if noise is None else noise[t]) for t, a in enumerate(actions)]


def tensors(step: Step) -> list[Tensor]:
    return [t for t in step if t is not None]


def same(left: list[Step], right: list[Step]) -> bool:
    pairs = [zip(tensors(one), tensors(other), strict=True) for one, other in zip(left, right, strict=True)]
    return all(torch.equal(a, b) for pair in pairs for a, b in pair)


def copied(step: Step) -> Step:
    return Step(*(None if t is None else t.clone() for t in step))


def happened(step: Step) -> Tensor:
    """(N,) where the step was one: not where an engine only reset itself."""
    return torch.ones_like(step.terminated).cpu() if step.valid is None else step.valid.cpu()


def can_draw(env: Env, obs: Tensor) -> bool:
    """Tensor environments draw any observation; some engines only their own states, or nothing, and say so."""
    if isinstance(env, TensorEnv):
        return True
    try:
        draw_observations(env, obs)
    except UsageError:
        return False
    return True


def lockstep(env: Any, alone: list[Any], starts: list[Any], limit: int, steps: int, clipped: bool) -> Counter[str]:
    """Every field of every row is what an engine of one says that is reset only when told to; returns what was seen."""
    obs = env.reset()
    assert torch.equal(obs, torch.from_numpy(np.concatenate([start for start, _ in starts])).to(obs.dtype))
    clock, lives = [0] * len(alone), [int(info.get("lives", [0])[0]) for _, info in starts]
    begins = [False] * len(alone)  # a further life of a game, with FIRE
    seen: Counter[str] = Counter()
    for action in random_actions(env, steps, seed=2):
        step = env.step(action)
        for i, engine in enumerate(alone):
            final, score, over, _, info = engine.step(np.array([1]) if begins[i] else action[i : i + 1].numpy())
            clock[i] += 1
            late, left = clock[i] == limit, int(info.get("lives", [0])[0])
            lost = 0 < left < lives[i]
            assert step.reward[i] == (np.sign(score[0]) if clipped else score[0])
            assert step.terminated[i] == (over[0] or lost)
            assert step.truncated[i] == (late and not over[0] and not lost)
            assert torch.equal(step.final_obs[i], torch.from_numpy(final[0]).to(obs.dtype))
            if over[0] or late:
                final, info = engine.reset()
                clock[i] = 0
            assert torch.equal(step.obs[i], torch.from_numpy(final[0]).to(obs.dtype))
            lives[i], begins[i] = int(info.get("lives", [0])[0]), lost and not over[0] and not late
            ended = "both" if over[0] and late else "over" if over[0] else "late" if late else "lost"
            seen[ended if over[0] or late or lost else "on"] += 1
        assert not (step.terminated & step.truncated).any()
        assert step.valid is None
    return seen


# checks for every Env ------------------------------------------------------------------------------------------------


def check_shapes_dtypes_and_device(factory: Factory) -> None:
    for num_envs in (1, 5):
        env = factory(num_envs=num_envs, max_episode_steps=4)
        assert env.num_envs == num_envs
        obs_like = ((num_envs, *env.observation.shape), env.observation.dtype, env.device.type)
        flag_like = ((num_envs,), torch.bool, env.device.type)
        number_like = ((num_envs,), torch.float32, env.device.type)
        kind = lambda t: (tuple(t.shape), t.dtype, t.device.type)  # noqa: E731
        assert kind(env.reset(seed=1)) == obs_like
        for step in run(env, random_actions(env, 6)):
            assert [kind(t) for t in step[:5]] == [obs_like, number_like, flag_like, flag_like, obs_like]
            assert step.valid is None or kind(step.valid) == flag_like
            assert step.obs.isfinite().all()
            assert step.final_obs.isfinite().all()
            assert step.reward.isfinite().all()
            assert not any(t.requires_grad for t in tensors(step))


def check_obs_is_the_successor_unless_done(factory: Factory) -> None:
    env = factory(num_envs=8, max_episode_steps=5)
    env.reset(seed=1)
    for step in run(env, random_actions(env, 20)):
        going = ~(step.terminated | step.truncated)
        assert torch.equal(step.obs[going], step.final_obs[going])
        assert not (step.terminated & step.truncated).any()


def check_truncates_exactly_at_the_limit(factory: Factory) -> None:
    limit = 6
    env = factory(num_envs=8, max_episode_steps=limit)
    env.reset(seed=3)
    age = torch.zeros(8, dtype=torch.int64)
    for step in run(env, random_actions(env, 40)):
        age += happened(step)
        terminated, truncated = step.terminated.cpu(), step.truncated.cpu()
        assert torch.equal(truncated, (age == limit) & ~terminated)
        age[terminated | truncated] = 0


def check_limit_of_one_step(factory: Factory) -> None:
    env = factory(num_envs=4, max_episode_steps=1)
    env.reset(seed=3)
    for step in run(env, random_actions(env, 3)):
        assert torch.equal((step.terminated ^ step.truncated).cpu(), happened(step))


def check_reset_restarts_unfinished_episodes(factory: Factory) -> None:
    limit = 7
    env = factory(num_envs=16, max_episode_steps=limit)
    first = env.reset(seed=2)
    assert not any(step.truncated.any() for step in run(env, random_actions(env, limit - 2)))
    assert torch.equal(env.reset(seed=2), first)
    env.finished_episodes()
    restarted = run(env, random_actions(env, limit))
    assert not any(step.truncated.any() for step in restarted[:-1])
    expected = sum((step.terminated | step.truncated).sum() for step in restarted)
    assert env.finished_episodes()[0] == expected
    untouched = torch.stack([step.terminated for step in restarted[:-1]]).any(0)
    assert (restarted[-1].terminated | restarted[-1].truncated | untouched).all()


def check_seeds(factory: Factory) -> None:
    def trajectory(seed: int) -> list[Step]:
        env = factory(num_envs=8, max_episode_steps=3, seed=seed)
        return run(env, random_actions(env, 12))

    first = trajectory(11)
    assert same(first, trajectory(11))
    env = factory(num_envs=8, max_episode_steps=3, seed=11)
    by_reset = lambda seed: [env.reset(seed=seed), *(step.final_obs for step in run(env, random_actions(env, 12)))]  # noqa: E731
    one, other, again = by_reset(5), by_reset(6), by_reset(5)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    starts_vary = not all(torch.equal(row, one[0][0]) for row in one[0])
    if starts_vary:
        assert not same(first, trajectory(12))
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check_noise_decides_everything(factory: Factory) -> None:
    env, other = factory(num_envs=8, max_episode_steps=3, seed=1), factory(num_envs=8, max_episode_steps=3, seed=2)
    if env.noise_size == 0 and not isinstance(env, TensorEnv):
        pytest.skip("has random streams of its own")
    start, noise, actions = random_noise(env, 1)[0], random_noise(env, 12, seed=1), random_actions(env, 12)
    given = (start.clone(), noise.clone(), actions.clone())
    torch.manual_seed(0)
    assert torch.equal(env.reset(noise=start), other.reset(noise=start))
    left = run(env, actions, noise)
    torch.manual_seed(1)
    right = run(other, actions, noise)
    assert same(left, right)
    assert all(torch.equal(a, b) for a, b in zip(given, (start, noise, actions), strict=True))


def check_noise_spares_the_own_stream(factory: Factory) -> None:
    env, twin = (factory(num_envs=4, max_episode_steps=3, seed=1) for _ in range(2))
    if env.noise_size == 0 and not isinstance(env, TensorEnv):
        pytest.skip("has random streams of its own")
    run(env, random_actions(env, 5), random_noise(env, 5))
    env.reset(noise=random_noise(env, 1)[0])
    assert torch.equal(env.reset(), twin.reset())


def check_global_stream_is_untouched(factory: Factory) -> None:
    before = torch.get_rng_state()
    env = factory(num_envs=4, max_episode_steps=3, seed=1)
    env.reset(seed=4)
    steps = run(env, random_actions(env, 5))
    if can_draw(env, steps[-1].obs):
        draw_observations(env, steps[-1].obs)
    env.spawn(2, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def check_nothing_returned_is_an_alias(factory: Factory) -> None:
    env = factory(num_envs=8, max_episode_steps=5, seed=1)
    actions = random_actions(env, 12)
    obs = env.reset()
    kept, copies = [obs], [obs.clone()]
    for action in actions:
        step = env.step(action)
        kept.extend(tensors(step))
        copies.extend(tensors(copied(step)))
    env.reset()
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def check_writing_into_results_changes_nothing(factory: Factory) -> None:
    clean, written = (factory(num_envs=8, max_episode_steps=5, seed=1) for _ in range(2))
    clean.reset()
    written.reset().fill_(77)
    for action in random_actions(clean, 12):
        expected, step = clean.step(action), written.step(action)
        assert same([expected], [step])
        for tensor in tensors(step):
            tensor.fill_(77)
    assert torch.equal(clean.finished_episodes(), written.finished_episodes())


def check_fields_share_no_memory(factory: Factory) -> None:
    env = factory(num_envs=4, max_episode_steps=5, seed=1)
    env.reset()
    step = env.step(random_actions(env, 1)[0])
    for index in range(len(tensors(step))):
        before = copied(step)
        step[index].fill_(77 if step[index].dtype != torch.bool else True)
        others = [i for i in range(len(tensors(step))) if i != index]
        assert all(torch.equal(step[i], before[i]) for i in others), f"{Step._fields[index]} shares memory"


def check_step_reads_nothing_on_the_host(factory: Factory) -> None:
    for limit in (None, 3):
        env = factory(num_envs=4, max_episode_steps=limit)
        actions, noise = random_actions(env, 4), random_noise(env, 4)
        if not env.capturable:
            pytest.skip("does not claim to be free of host reads")
        env.reset()
        env._uses_arrays = False  # over tensors, as on a device
        with pytest.MonkeyPatch.context() as patch, no_host_reads():
            for module, name in (
                (validate, "check_choices"),
                (tensor_env, "check_masks"),
            ):  # which are for the CPU alone
                patch.setattr(module, name, lambda *given: None)
            for t in range(4):
                env.step(actions[t], noise[t])
            env.finished_episodes()
            env.reset(noise=noise[0])
            env.step(actions[0])


def check_spawn_is_independent(factory: Factory) -> None:
    env, twin = (factory(num_envs=4, max_episode_steps=5, seed=1) for _ in range(2))
    actions = random_actions(env, 12)
    child = env.spawn(3, seed=9)
    assert type(child) is type(env) or isinstance(env, (GymVectorEnv, Grouped))  # which are taken apart for scoring
    assert (child.num_envs, child.device, child.action, child.observation) == (
        3,
        env.device,
        env.action,
        env.observation,
    )
    first = run(child, random_actions(child, 12))
    assert torch.stack([s.truncated | s.terminated for s in first[:5]]).any(0).all()
    assert env.finished_episodes()[0] == 0
    assert same(run(env, actions), run(twin, actions))
    assert same(run(env.spawn(3, seed=9), random_actions(child, 12)), first)
    assert same(run(factory(num_envs=3, max_episode_steps=5, seed=9), random_actions(child, 12)), first)


def check_state_dict_resumes_exactly(factory: Factory) -> None:
    env = factory(num_envs=8, max_episode_steps=5, seed=1)
    if not env.resumable and not isinstance(env, TensorEnv):
        pytest.skip("cannot save its state, and does not claim to")
    actions = random_actions(env, 27)
    run(env, actions[:13])
    saved = env.state_dict()
    expected, counted = run(env, actions[13:]), env.finished_episodes()
    other = factory(num_envs=8, max_episode_steps=5, seed=2)
    run(other, actions[:3])
    for restored in (env, other):
        restored.load_state_dict(saved)
        assert same(run(restored, actions[13:]), expected)
        assert torch.equal(restored.finished_episodes(), counted)


def check_finished_episodes(factory: Factory) -> None:
    env = factory(num_envs=8, max_episode_steps=11, seed=1)
    run(env, random_actions(env, 3))
    env.reset()  # forgets the episodes under way, not the finished ones
    env.finished_episodes()
    returns, lengths, episodes = [0.0] * 8, [0] * 8, []
    for chunk in random_actions(env, 150).split(50):
        episodes.clear()
        for step in run(env, chunk):
            ended, real = (step.terminated | step.truncated).tolist(), happened(step).tolist()
            for i, (reward, done) in enumerate(zip(step.reward.tolist(), ended, strict=True)):
                returns[i] += reward
                lengths[i] += real[i]
                if done:
                    episodes.append((returns[i], lengths[i]))
                    returns[i], lengths[i] = 0.0, 0
        count, total_return, total_length = env.finished_episodes().tolist()
        assert count == len(episodes) > 0
        assert total_length == sum(length for _, length in episodes)
        assert total_return == pytest.approx(sum(r for r, _ in episodes), rel=1e-4, abs=1e-3)
        assert env.finished_episodes().tolist() == [0, 0, 0]


def check_frames(factory: Factory) -> None:
    env = factory(num_envs=4, max_episode_steps=None, seed=1)
    if not can_draw(env, env.spawn(1, seed=1).reset()):
        pytest.skip("draws no observations, and does not claim to")
    actions = random_actions(env, 40)
    obs = torch.cat([env.reset(), *(step.obs for step in run(env, actions)[::8])])
    before = obs.clone()
    frames = draw_observations(env, obs)
    assert torch.equal(obs, before)
    assert frames.dtype == np.uint8
    assert frames.shape[0] == len(obs)
    assert frames.shape[3] == 3
    assert frames.shape[1] % 2 == frames.shape[2] % 2 == 0
    assert np.array_equal(draw_observations(env, obs[:1]), frames[:1])
    assert draw_observations(env, obs[:4], actions[0]).shape == frames[:4].shape
    assert len(np.unique(frames.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32))) > 5, "colours"
    seen = getattr(env, "_seen", None)  # without action masks and what only the critic sees
    drawn = obs if seen is None else obs[:, : math.prod(seen.shape)]
    different_obs, different_frames = len(drawn.unique(dim=0)), len({frame.tobytes() for frame in frames})
    assert different_frames > different_obs / 2
    assert different_obs == 1 or different_frames > 1


def check_frames_of_extreme_observations(factory: Factory) -> None:
    env = factory(num_envs=1)
    if not can_draw(env, env.spawn(1, seed=1).reset()):
        pytest.skip("draws no observations, and does not claim to")
    shape = (1, *env.observation.shape)
    shapes = {draw_observations(env, env.reset()).shape}
    for value in (0.0, 1e3, -1e9, 1e30, -1e30, float("inf"), -float("inf"), float("nan")):
        obs = torch.full(shape, value, device=env.device)
        shapes.add(draw_observations(env, obs, random_actions(env, 1)[0]).shape)
        if isinstance(env.action, Box):
            shapes.add(
                draw_observations(env, env.reset(), torch.full((1, *env.action.shape), value, device=env.device)).shape
            )
    assert len(shapes) == 1


def check_bad_sizes_are_refused(factory: Factory) -> None:
    for settings in ({"num_envs": 0}, {"num_envs": 2, "max_episode_steps": 0}):
        with pytest.raises(UsageError, match=next(reversed(settings))):
            factory(**settings)
    with pytest.raises(UsageError, match="num_envs"):
        factory(num_envs=1).spawn(0, seed=0)


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]
OWN_STREAMS = ("noise_decides_everything", "noise_spares_the_own_stream")  # of an engine that takes no noise
OUTSIDE = (*OWN_STREAMS, "state_dict_resumes_exactly")  # of an engine that cannot save its state, either
DRAWING = ("frames", "frames_of_extreme_observations")


def checks(names: Callable[[str], bool], of: list[Any] = CHECKS) -> pytest.MarkDecorator:
    """Parametrizes a test by those checks whose names, without `check_`, are wanted."""
    return pytest.mark.parametrize("check", [c for c in of if names(c.__name__[6:])], ids=lambda c: c.__name__[6:])


def checks_but(*names: str) -> pytest.MarkDecorator:
    """Parametrizes a test by all checks but those that do not apply."""
    return checks(lambda name: name not in names)


# checks for a TensorEnv, whose pure methods can say what a step should have been -------------------------------------


def check_step_is_made_of_the_pure_methods(factory: Factory) -> None:
    env = factory(num_envs=8, max_episode_steps=5)
    noise = random_noise(env, 17)
    env.reset(noise=noise[0])
    clock, seen_ends = torch.zeros(8, dtype=torch.int32, device=env.device), 0
    for action, fresh in zip(random_actions(env, 16), noise[1:], strict=True):
        state = env.state.clone()
        given = env.action.split(action) if isinstance(env.action, Composite) else action
        next_state = env.advance(state.clone(), given)
        step = env.step(action, fresh)
        assert torch.equal(step.final_obs, env._show(next_state))
        assert torch.equal(step.reward, env.reward(state, given, next_state))
        assert torch.equal(step.terminated, env.terminated(next_state))
        done = step.terminated | step.truncated
        start = env.initial(fresh)
        assert torch.equal(step.obs[done], env._show(start)[done])
        assert torch.equal(env.state, torch.where(done[:, None], start, next_state))
        clock = torch.where(done, 0, clock + 1)
        assert torch.equal(env.clock, clock)
        seen_ends += int(done.sum())
    assert seen_ends >= 8


def check_reset_restarts_every_row(factory: Factory) -> None:
    env = factory(num_envs=8, max_episode_steps=50)
    noise = random_noise(env, 2)
    env.reset(noise=noise[0])
    run(env, random_actions(env, 3), noise[:1].expand(3, -1, -1))
    obs = env.reset(noise=noise[1])
    assert torch.equal(env.state, env.initial(noise[1]))
    assert torch.equal(obs, env._show(env.initial(noise[1])))
    assert not env.clock.any()


def check_termination_on_the_last_step_is_not_truncation(factory: Factory) -> None:
    env = factory(num_envs=4096, max_episode_steps=1)
    wide = torch.randn(env.state.shape, generator=torch.Generator().manual_seed(0)).to(env.device) * 2
    action = random_actions(env, 1)[0]
    ending = env.terminated(env._apply("advance", wide, action))
    if not ending.any():
        pytest.skip("never terminates")
    env.state.copy_(wide)
    step = env.step(action)
    assert torch.equal(step.terminated, ending)
    assert torch.equal(step.truncated, ~ending)


def check_without_a_limit_nothing_is_truncated(factory: Factory) -> None:
    env = factory(num_envs=2)
    if env.time_limit is not None:
        assert env.max_episode_steps == env.time_limit
        env.max_episode_steps = None
    assert not any(step.truncated.any() for step in run(env, random_actions(env, 12)))


def check_state_keeps_its_address(factory: Factory) -> None:
    env = factory(num_envs=4, max_episode_steps=2)
    addresses = lambda: [t.data_ptr() for t in (env.state, env.clock, env._running_return, env._finished)]  # noqa: E731
    before = addresses()
    env.reset()
    run(env, random_actions(env, 4))
    env.finished_episodes()
    env.load_state_dict(env.state_dict())
    env.reset(seed=1)
    assert addresses() == before


TENSOR_CHECKS = [check for name, check in globals().items() if name.startswith("check_") and check not in CHECKS]

every_env = pytest.mark.parametrize("env_id", list(ENVS))
every_check = checks(lambda name: True, CHECKS + TENSOR_CHECKS)


@every_env
@every_check
def test_contract(check: Callable[[Factory], None], env_id: str) -> None:
    check(partial(make, env_id))


# the watch for host reads really watches -----------------------------------------------------------------------------

READS = {
    "item": lambda x: x[0].item(),
    "if": lambda x: 1 if x[0] > 0 else 0,
    "float": lambda x: float(x.sum()),
    "any in if": lambda x: 1 if (x > 1).any() else 0,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 1),
    "mask": lambda x: x[x > 1],
    "write by mask": lambda x: x.__setitem__(x > 1, 0.0),
    "masked_select": lambda x: x.masked_select(x > 1),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
    "host data": lambda x: torch.tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_the_watch_catches(read: Callable[[Tensor], Any]) -> None:
    x = torch.arange(4.0)
    read(x)
    with pytest.raises(HostRead), no_host_reads():
        read(x)


def test_the_watch_lets_device_work_pass() -> None:
    x = torch.arange(4.0)
    with no_host_reads():
        y = torch.where(x > 1, x, -x)[torch.arange(2)].clamp(min=0.0)
        y[1] = 3.0
    assert y.tolist() == [0.0, 3.0]


# the same on a GPU ---------------------------------------------------------------------------------------------------


def on_gpu(function: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(function))


@on_gpu
@every_env
@every_check
def test_contract_on_gpu(check: Callable[[Factory], None], env_id: str) -> None:
    check(partial(make, env_id, device="cuda"))


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@every_env
def test_step_never_waits_on_gpu(env_id: str) -> None:
    env = make(env_id, num_envs=64, device="cuda", max_episode_steps=3)
    actions, noise = random_actions(env, 8), random_noise(env, 8)
    run(env, actions, noise)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(env, actions, noise)
        run(env, actions)
        env.finished_episodes()
        env.reset(noise=noise[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
@every_env
def test_cuda_graph_of_four_steps(env_id: str) -> None:
    env = make(env_id, num_envs=64, device="cuda", max_episode_steps=3)
    actions, noise = random_actions(env, 4), random_noise(env, 4)
    start = env.state_dict()
    expected, counted = [copied(step) for step in run(env, actions, noise)], env.finished_episodes()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(env, actions, noise)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps = run(env, actions, noise)
    for _ in range(2):
        env.load_state_dict(start)
        graph.replay()
        assert same(steps, expected)
        assert torch.equal(env.finished_episodes(), counted)


@on_gpu
@every_env
def test_gpu_and_cpu_agree(env_id: str) -> None:
    envs = [make(env_id, num_envs=32, device=device, max_episode_steps=7) for device in ("cpu", "cuda")]
    actions, noise = random_actions(envs[0], 12), random_noise(envs[0], 12)
    starts = [env.reset(noise=noise[0].to(env.device)).cpu() for env in envs]
    torch.testing.assert_close(*starts)
    on_cpu, on_cuda = (run(env, actions.to(env.device), noise.to(env.device)) for env in envs)
    for one, other in zip(on_cpu, on_cuda, strict=True):
        torch.testing.assert_close(tensors(one), [t.cpu() for t in tensors(other)], rtol=1e-4, atol=1e-4)
