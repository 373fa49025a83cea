"""JAX environments: nothing is lost between Brax's interface and ours, nothing is copied, nothing is compiled twice."""

import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
from run_helpers import skip_file_without
from test_contract import (
    DRAWING,
    OWN_STREAMS,
    Factory,
    check_finished_episodes,
    check_truncates_exactly_at_the_limit,
    checks_but,
    on_gpu,
    random_actions,
    run,
    same,
)
from torch import Tensor

import tightrope as tr
from tightrope.envs.adapters.brax import ADAPTER, NAMES, JaxEnv, compile_functions, from_playground
from tightrope.envs.registry import EnvOptions
from tightrope.errors import UsageError

skip_file_without("brax")
pytestmark = [
    pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Brax System, piplines and environments:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing .* directly from `Data` is deprecated:DeprecationWarning"),
]
END = 4.0


class WalkState(NamedTuple):
    obs: Any
    reward: Any
    done: Any
    info: Any


class Walk:
    """Walk on, by 0 to 2 a step, until beyond END; starts are multiples of 1/64 below 1, so that float32 is exact here.

    As untidy as Brax's own: the position is only in the observation, ends are weakly typed, the reward is a constant, the
    dictionary that came in is written into.
    """

    action_size = 1

    def __init__(self) -> None:
        self.traces = 0  # Python runs only when something is compiled

    def reset(self, rng: Any) -> WalkState:
        import jax
        import jax.numpy as jnp

        x = jnp.floor(jax.random.uniform(rng) * 64) / 64
        return WalkState(jnp.stack([x, 0.0]), jnp.zeros(()), jnp.zeros(()), {"steps": 0, "rng": rng})

    def step(self, state: WalkState, action: Any) -> WalkState:
        import jax.numpy as jnp

        self.traces += 1
        x = state.obs[0] + 1 + action[0]
        state.info["steps"] += 1
        return WalkState(jnp.stack([x, action[0]]), 1.0, jnp.where(x > END, 1.0, 0.0), state.info)


class Drift(Walk):
    """Never ends, and pays for where it is."""

    def step(self, state: WalkState, action: Any) -> WalkState:
        after = super().step(state, action)
        return after._replace(reward=after.obs[0], done=0.0)


@cache
def compiled_once(kind: type[Walk], device: str) -> JaxEnv:
    return JaxEnv(kind(), 1, device)


def walk(
    num_envs: int = 4, max_episode_steps: int | None = None, seed: int = 0, device: str = "cpu", kind: type[Walk] = Walk
) -> JaxEnv:
    if num_envs < 1 or max_episode_steps == 0:
        return JaxEnv(kind(), num_envs, device, max_episode_steps, seed)
    env = compiled_once(kind, device).spawn(num_envs, seed)
    env._set_time_limit(max_episode_steps)
    return env


def drift(*args: Any, **kwargs: Any) -> JaxEnv:
    return walk(*args, kind=Drift, **kwargs)


def made(env_id: str, num_envs: int = 4, max_episode_steps: int | None = None, **env_kwargs: Any) -> JaxEnv:
    return ADAPTER.from_id(
        env_id, num_envs, "cpu", EnvOptions(max_episode_steps=max_episode_steps, env_kwargs=env_kwargs)
    )


def quarters(actions: Tensor) -> Tensor:
    """Actions with which float32 makes no error."""
    return (actions * 4).round() / 4


def addresses(arrays: Any) -> list[int]:
    import jax

    return [array.unsafe_buffer_pointer() for array in jax.tree.leaves(arrays)]


# the contract --------------------------------------------------------------------------------------------------------

every_check = checks_but(*OWN_STREAMS, *DRAWING)


@every_check
def test_contract(check: Callable[[Factory], None]) -> None:
    check(walk)


@pytest.mark.parametrize("check", [check_truncates_exactly_at_the_limit, check_finished_episodes])
def test_contract_where_only_the_clock_ends(check: Callable[[Factory], None]) -> None:
    check(drift)


@on_gpu
@every_check
def test_contract_on_gpu(check: Callable[[Factory], None]) -> None:
    check(lambda **settings: walk(**settings, device="cuda"))


# episodes ------------------------------------------------------------------------------------------------------------


def test_every_row_is_the_true_one() -> None:
    """A loop of its own over every row: successors, ends, clocks and rewards, to the last bit."""
    limit, num_envs = 4, 16
    env = walk(num_envs, limit, seed=1)
    obs, age = env.reset(), torch.zeros(num_envs)
    terminations = truncations = 0
    for action in quarters(random_actions(env, 100)):
        step = env.step(action)
        final = torch.stack([obs[:, 0] + 1 + action[:, 0], action[:, 0]], 1)
        age += 1
        over = final[:, 0] > END
        late = (age == limit) & ~over
        assert torch.equal(step.final_obs, final)
        assert torch.equal(step.terminated, over)
        assert torch.equal(step.truncated, late)
        assert torch.equal(step.reward, torch.ones(num_envs))
        done = over | late
        assert torch.equal(step.obs[~done], final[~done])
        starts = step.obs[done]
        assert torch.equal(starts[:, 0] * 64, (starts[:, 0] * 64).round())
        assert ((starts[:, 0] >= 0) & (starts[:, 0] < 1) & (starts[:, 1] == 0)).all()
        age[done], obs = 0, step.obs
        terminations, truncations = terminations + int(over.sum()), truncations + int(late.sum())
    assert terminations > 50
    assert truncations > 50


def test_every_episode_starts_afresh() -> None:
    env = walk(8, max_episode_steps=1, seed=3)
    starts = torch.stack([env.reset()[:, 0], *(step.obs[:, 0] for step in run(env, random_actions(env, 50)))])
    assert len(starts.unique()) > 55  # of 64
    assert all(len(column.unique()) > 25 for column in starts.T)  # no row returns to where it began
    assert all(len(row.unique()) > 2 for row in starts)  # nor do the rows start alike
    assert not torch.equal(starts[0], starts[1])


def test_all_of_the_state_starts_afresh() -> None:
    env = walk(8, max_episode_steps=7)
    for action in random_actions(env, 30):
        env.step(action)
        state = env.state_dict()
        assert torch.equal(state["state.info.steps"], state["clock"])
        assert not state["state.done"].any()


def test_a_reset_keeps_the_episodes_that_finished() -> None:
    env = drift(4, max_episode_steps=5)
    run(env, random_actions(env, 12))
    env.reset()
    run(env, random_actions(env, 4))
    env.reset(seed=3)
    assert env.finished_episodes()[[0, 2]].tolist() == [8, 40]
    assert env.finished_episodes().tolist() == [0, 0, 0]


def test_seeds_count_to_the_last_bit() -> None:
    starts = [walk(16, seed=seed).reset(seed=seed)[:, 0] for seed in (1, 2, 1 + 2**32, 1 + 2**62)]
    assert len({tuple(start.tolist()) for start in starts}) == 4


def test_start_states_computed_always_or_when_needed_are_the_same() -> None:
    import jax

    env, other = (walk(8, max_episode_steps=6, seed=1) for _ in range(2))
    _, other._advance = compile_functions(jax, Walk(), branching=False)  # as on a GPU
    actions = random_actions(env, 40)
    for action in actions:
        one, two = env.step(action), other.step(action)
        assert same([one], [two])
        for tensor in two[:5]:
            tensor.fill_(77)
    assert torch.equal(env.finished_episodes(), other.finished_episodes())


# compiled once, copied never -----------------------------------------------------------------------------------------


def test_compiles_once() -> None:
    import jax

    kind = Walk()
    env = JaxEnv(kind, 4, max_episode_steps=6)
    actions = random_actions(env, 100)
    env.step(actions[0])
    traces, compilations = kind.traces, []

    def listen(event: str, *_: Any, **__: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    for _ in range(4):
        run(env, actions)
        env.finished_episodes()
        run(env, actions[:3])
        env.reset()
        env.step(actions[0])
        env.reset(seed=3)
        env.step(actions[0])
        env.load_state_dict(env.state_dict())
        run(env, actions[:3])
        run(env.spawn(4, seed=2), actions[:3])
    assert (kind.traces, compilations) == (traces, [])
    assert env._advance._cache_size() == 1
    jax.jit(lambda x: x + 1)(2.0)
    assert len(compilations) == 1  # the listener listens


def test_nothing_is_copied() -> None:
    env, given, taken = walk(8, max_episode_steps=5), [], []
    advance = env._advance

    def watched(running: Any, action: Any, limit: Any) -> Any:
        given.append(action.ctypes.data)
        running, answer = advance(running, action, limit)
        taken.append((addresses(answer), addresses(running)))
        return running, answer

    env._advance = watched
    for action in random_actions(env, 12):
        action = action.clone()
        step = env.step(action)
        assert given[-1] == action.data_ptr() == addresses(env._array(action))[0]
        answer, kept = taken[-1]
        assert [tensor.data_ptr() for tensor in step[:5]] == answer
        assert len(set(answer)) == 5
        assert not set(answer) & set(kept)


def test_an_action_may_be_written_over() -> None:
    env, twin = (walk(4096, max_episode_steps=5, seed=1) for _ in range(2))
    for action in random_actions(env, 12):
        given = action.clone()
        step = twin.step(given)
        given.fill_(77)
        assert same([env.step(action)], [step])


def test_an_action_may_be_any_view() -> None:
    env, twin = (walk(4, max_episode_steps=5, seed=1) for _ in range(2))
    action = random_actions(env, 1)[0, :1].expand(4, 1)
    trained = action.clone().requires_grad_()
    assert same([env.step(action)], [twin.step(trained)])
    apart = torch.stack([action, action], 2)[..., 1]
    assert same([env.step(apart)], [twin.step(action.clone())])


# saving --------------------------------------------------------------------------------------------------------------


def test_state_goes_through_a_file() -> None:
    env, other = walk(8, max_episode_steps=5, seed=1), walk(8, max_episode_steps=5, seed=2)
    actions = random_actions(env, 30)
    run(env, actions[:13])
    saved = env.state_dict()
    assert {"state.obs", "state.info.rng", "key", "clock", "running_return", "finished"} < set(saved)
    other.load_state_dict(safetensors.torch.load(safetensors.torch.save(saved)))
    third = walk(8, max_episode_steps=5, seed=3)
    third.load_state_dict(saved)
    for tensor in saved.values():
        tensor.zero_()  # copies both ways: none of them minds
    expected, counted = run(env, actions[13:]), env.finished_episodes()
    for restored in (other, third):
        assert same(run(restored, actions[13:]), expected)
        assert torch.equal(restored.finished_episodes(), counted)


def test_a_state_that_does_not_fit_is_refused() -> None:
    env, saved = walk(3), walk(4).state_dict()
    before = env.state_dict()
    with pytest.raises(RuntimeError, match=r"state.obs has shape \(4, 2\)"):
        env.load_state_dict(saved)
    with pytest.raises(RuntimeError, match=r"state.obs is missing"):
        env.load_state_dict({})
    assert all(torch.equal(before[name], tensor) for name, tensor in env.state_dict().items())


# ids -----------------------------------------------------------------------------------------------------------------


def test_known_ids() -> None:
    from brax import envs

    assert set(NAMES) == set(envs._envs)
    assert all(
        ADAPTER.provides(env_id) for env_id in ("brax/ant", "ant", "brax/of-my-own", "playground/CartpoleBalance")
    )
    assert not any(ADAPTER.provides(env_id) for env_id in ("Ant-v5", "CartPole-v1", "braxton", "CartpoleBalance"))


def test_brax_fast() -> None:
    env = made("brax/fast", 4)
    assert (env.observation.shape, env.action.shape, env.action.low, env.action.high) == ((2,), (1,), -1.0, 1.0)
    assert env.max_episode_steps == 1000
    assert made("fast", max_episode_steps=7).max_episode_steps == 7
    steps = run(env, torch.ones(2, 4, 1))
    torch.testing.assert_close(steps[1].obs, torch.tensor([[0.0012, 0.04]]).expand(4, 2))


def test_of_a_dictionary_the_state_is_shown() -> None:
    env = made("fast", obs_mode="dict_state", asymmetric_obs=True)
    plain = made("fast")
    actions = random_actions(env, 3)
    assert env.observation == plain.observation
    assert same(run(env, actions), run(plain, actions))
    with pytest.raises(UsageError, match=r"pixels/view_0.*one must be 'state'"):
        made("fast", obs_mode="dict_pixels")


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("brax/antt", {}, "unknown env 'brax/antt'. Did you mean ant?"),
        (
            "brax/ant",
            {"backend": "bullet"},
            "backend 'bullet' is not a physics of Brax: give one of spring, positional",
        ),
        ("brax/ant", {"legs": 5}, "env 'brax/ant' cannot be made: .*legs"),
    ],
)
def test_bad_requests(env_id: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(env_id, **kwargs)


def test_devices_that_jax_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"device mps .* give cpu or cuda"):
        JaxEnv(Walk(), device="mps")

    def none(platform: str) -> Any:
        raise RuntimeError(f"Unknown backend {platform}")

    monkeypatch.setattr("jax.devices", none)
    with pytest.raises(UsageError, match=r"device cuda .* pip install"):
        JaxEnv(Walk(), device="cuda")


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [("brax/ant", "brax.envs", "brax"), ("playground/CartpoleBalance", "mujoco_playground", "playground")],
)
def test_a_missing_package(env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as caught:
        made(env_id)
    assert (
        str(caught.value) == f'env {env_id!r} needs a package that is not installed: pip install "tightrope[{extra}]"'
    )


def test_drawing_is_refused() -> None:
    env = walk()
    with pytest.raises(UsageError, match="cannot be drawn"):
        env.draw(env.reset())


# real physics --------------------------------------------------------------------------------------------------------


def test_inverted_pendulum_is_that_of_brax() -> None:
    import jax
    from brax import envs

    env = made("brax/inverted_pendulum", 8, max_episode_steps=12)

    theirs = jax.jit(jax.vmap(envs.get_environment("inverted_pendulum", backend="spring").step))
    terminated = truncated = 0
    for action in random_actions(env, 60):
        expected = theirs(env._running.state, jax.numpy.asarray(action.numpy()))
        step = env.step(action)
        torch.testing.assert_close(step.final_obs, torch.from_dlpack(expected.obs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step.reward, torch.from_dlpack(expected.reward))
        assert torch.equal(step.terminated, torch.from_dlpack(expected.done) > 0)
        done = step.terminated | step.truncated
        assert (step.obs[done].abs() <= 0.011).all()  # where Brax starts it
        terminated, truncated = terminated + int(step.terminated.sum()), truncated + int(step.truncated.sum())
    assert env._advance._cache_size() == 1
    assert terminated
    assert truncated


def test_playground_keeps_to_its_types() -> None:
    """Traced, not compiled, which takes half a minute: what a step gives back is what the next one takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("mujoco_playground")
    import jax

    env, limit = from_playground("playground/CartpoleBalance", "CartpoleBalance", {})
    assert limit == 1000
    begin, advance = compile_functions(jax, env, branching=True)
    running, obs = jax.eval_shape(lambda key: begin(key, 3), jax.random.PRNGKey(0))
    after, answer = jax.eval_shape(
        advance, running, jax.ShapeDtypeStruct((3, 1), "float32"), jax.ShapeDtypeStruct((), "int32")
    )
    assert obs.shape == answer[0].shape == (3, 5)
    assert jax.tree.structure(running) == jax.tree.structure(after)
    kind = lambda array: (array.shape, array.dtype, array.weak_type)  # noqa: E731
    assert list(map(kind, jax.tree.leaves(running))) == list(map(kind, jax.tree.leaves(after)))
    with pytest.raises(UsageError, match="Did you mean CartpoleBalance"):
        made("playground/CartpoleBalanc")


# a run goes on ---------------------------------------------------------------------------------------------------------


def test_a_run_resumes_exactly(tmp_path: Path) -> None:
    def env() -> JaxEnv:
        return walk(4, 7)

    settings: dict[str, Any] = dict(
        num_steps=8, total_timesteps=6 * 32, num_minibatches=2, hidden_sizes=(8,), norm_obs=True, norm_reward=True,
        eval_every=64, eval_episodes=4,
    )  # fmt: skip
    whole = tr.PPO(env(), **settings).learn(quiet=True)
    agent = tr.PPO(env(), **settings)
    for stop in (1, 4):
        agent.learn(until=stop * 32, run_dir=tmp_path, quiet=True)
        agent = tr.load(tmp_path, env=env())
    agent.learn(quiet=True)
    mine, theirs = whole.state.state_dict(), agent.state.state_dict()
    assert mine.keys() == theirs.keys()
    for name in mine.keys() - {"run.seconds"}:
        assert torch.equal(mine[name], theirs[name]), name
