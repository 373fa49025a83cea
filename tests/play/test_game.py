"""Policies and environments as programs: they agree with torch, follow their constants, and say why where they cannot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.play.agreement import Comparison, Replay, check_game
from tightrope.play.game import Game, game_of
from tightrope.scene import Disc, Scene
from tightrope.types import Box

SMALL: dict[str, Any] = dict(num_envs=8, num_steps=16, num_minibatches=4, hidden_sizes=(16,), device="cpu")


class Ball(tr.envs.TensorEnv):
    """A ball that is pushed over a windy table."""

    observation, action = Box((2,)), Box((1,), -1.0, 1.0)
    noise_size, time_limit, pace = 2, 100, 50
    wind, limit, unused = 0.1, 2.0, 1.0

    def initial(self, noise: Tensor) -> Tensor:
        return 2 * noise - 1

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        place, speed = state.unbind(1)
        speed = speed + (action[:, 0].clamp(-1, 1) + self.wind) * 0.02
        return torch.stack([place + speed * 0.02, speed], 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state[:, 0].abs()

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0].abs() > self.limit


def game(env: Any, **settings: Any) -> Game:
    agent = tr.PPO(env, **SMALL | settings)
    return game_of(agent.state.policy, agent.score_env, 0, "It")


BUILT_IN = {
    "CartPole-v1": {"gravity", "cart_mass", "pole_mass", "half_length", "force"},
    "Pendulum-v1": {"gravity", "mass", "length"},
    "Acrobot-v1": {"gravity"},
    "MountainCar-v0": {"gravity", "force"},
    "CartDoublePendulum-v0": {"gravity", "cart_mass", "bob_mass", "length", "force"},
    "SpinCart-v0": {"gravity", "cart_mass", "pole_mass", "half_length", "force"},
    "DanceCart-v0": {"gravity", "cart_mass", "pole_mass", "half_length", "force"},
    "TMaze-v0": set[str](),
    "MaskProbe-v0": set[str](),
    "PrivilegedProbe-v0": set[str](),
    "HybridProbe-v0": set[str](),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_environments_agree_with_torch(name: str) -> None:
    made = game(name)
    assert made.attributes.keys() == BUILT_IN[name]
    assert made.picture is not None
    check_game(made, 0, steps=60)
    assert "agree to" in made.agreement
    assert made.checks


@pytest.mark.parametrize(
    "settings", [{"memory": "gru"}, {"norm_obs": True}, {"share_trunk": True, "activation": "gelu"}]
)
def test_policies_of_other_kinds_agree_with_torch(settings: dict[str, Any]) -> None:
    check_game(game("CartPole-v1", **settings), 0, steps=60)
    check_game(game("Pendulum-v1", **settings), 0, steps=60)


@torch.no_grad()
def closed_loop(agent: tr.Agent, start: list[float], steps: int) -> tuple[Tensor, Tensor]:
    """States (T, S) of torch and of the programs, each fed with what it computed itself, as in the browser."""
    made = game_of(agent.state.policy, agent.score_env, 0, "It")
    env, programs = made.env, {name: Replay(program) for name, program in made.programs.items()}
    clock, noise = torch.zeros(1, dtype=torch.int32), torch.tensor([0.5])
    state = mine = torch.tensor([start])
    theirs, ours = [], []
    for _ in range(steps):
        state = env.advance(state, agent.state.policy.act(env.observe(state))[1])
        obs = programs["observe"]({"state": mine, "clock": clock})["obs"]
        action = programs["policy"]({"obs": obs, "noise": noise})["action"]
        mine = programs["advance"]({"state": mine, "action": action, "clock": clock}, made.attributes)["next"]
        theirs.append(state)
        ours.append(mine)
    return torch.cat(theirs), torch.cat(ours)


def test_a_thousand_steps_of_a_pendulum_stay_with_torch() -> None:
    theirs, ours = closed_loop(tr.PPO("Pendulum-v1", **SMALL), [2.0, 0.5], 1000)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-3)


def test_a_policy_balances_in_the_programs_as_in_torch() -> None:
    """A decision between two pushes turns rounding into another path, so that only the first steps are the same."""
    agent = tr.PPO("CartPole-v1", seed=1, device="cpu").learn(quiet=True)
    theirs, ours = closed_loop(agent, [0.03, -0.02, 0.04, 0.01], 1000)
    torch.testing.assert_close(ours[:50], theirs[:50], rtol=0, atol=1e-4)
    assert not agent.score_env.terminated(torch.cat([theirs, ours])).any()


def test_a_constant_that_a_slider_changes_is_an_input() -> None:
    made = game(Ball)
    assert made.attributes == {"wind": 0.1}  # only what moves the state
    state, action, clock = torch.tensor([[0.2, 0.1]]), torch.tensor([[0.3]]), torch.zeros(1, dtype=torch.int32)
    windy = Ball(1)
    windy.wind = 2.5
    got = Replay(made.programs["advance"])({"state": state, "action": action, "clock": clock}, {"wind": 2.5})["next"]
    torch.testing.assert_close(got, windy.advance(state, action))


def test_a_constant_that_decides_about_shapes_is_left_as_it_is() -> None:
    class Odd(Ball):
        parts, wind, table = 2.0, 0.1, 0.5

        def advance(self, state: Tensor, action: Tensor) -> Tensor:
            steps = int(self.parts)
            bias = torch.tensor([self.table, 0.0], device=state.device)
            return sum((super(Odd, self).advance(state, action) / steps for _ in range(steps)), 0.01 * bias)

    assert game(Odd).attributes == {"wind": 0.1}


class Drawing(Ball):
    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        return Scene(64, 64, span=5.0, shapes=[Disc((obs[:, 0], 0.0), 2 * self.wind, color=(200, 0, 0))])


class Frames(Ball):
    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return np.zeros((len(obs), 8, 8, 3), np.uint8)


def test_pictures_of_a_users_environment() -> None:
    picture: Any = game(Drawing).picture
    (disc,) = picture["shapes"]
    assert disc["center"] == [{"column": 0}, 0.0]
    assert disc["radius"] == {"expression": ["*", 2.0, {"name": "wind"}]}
    assert disc["color"] == [200, 0, 0]
    for kind, words in ((Frames, "draw method"), (Ball, "no method scene")):
        made = game(kind)
        assert made.picture is None
        assert words in made.no_picture
        check_game(made, 0, steps=20)


def test_a_push_is_what_the_environment_declares_or_half_of_what_is_usual() -> None:
    made = game("CartPole-v1")
    check_game(made, 0, steps=20)
    assert made.push == pytest.approx([0, 0.4, 0, 0])
    made = game(Ball)
    check_game(made, 0, steps=300)
    assert len(made.push) == 2
    assert all(0.01 < x < 2 for x in made.push)


# what cannot be played ------------------------------------------------------------------------------------------------


class Random(Ball):
    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return super().advance(state, action) + 0.01 * torch.randn_like(state)


class Sorted(Ball):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state.sort(1).values[:, 0]


class Looks(Ball):
    def terminated(self, state: Tensor) -> Tensor:
        return super().terminated(state) if float(state.sum()) > 0 else state[:, 0].abs() > self.limit


class Impure(Ball):
    pure: ClassVar[bool] = False


class Steps(Ball):
    def step(self, action: Tensor, noise: Tensor | None = None) -> Any:
        return super().step(action, noise)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (Random, "It cannot be played in a browser: Random.advance: aten.randn_like.default draws random numbers$"),
    (Sorted, r"Sorted.reward: aten.sort.default is not an operation that recordings know$"),
    (Looks, "Looks.terminated: aten._local_scalar_dense.default looks at numbers: use torch.where instead of if$"),
    (Impure, "pure is False"),
    (Steps, "only tensor environments can$"),
]


@pytest.mark.parametrize(("kind", "words"), REFUSED)
def test_one_line_says_why_not(kind: Callable[[], Any], words: str) -> None:
    with pytest.raises(tr.UsageError, match=words):
        game(kind)


def test_a_program_that_differs_from_torch_is_refused() -> None:
    class Secret(Ball):
        """Moves by a number that a recording cannot see."""

        def advance(self, state: Tensor, action: Tensor) -> Tensor:
            self.__dict__.setdefault("_count", [0])[0] += 1
            return super().advance(state, action) + 0.01 * (self._count[0] % 7)  # type: ignore[attr-defined]

    made = game(Ball)
    made.env.__class__ = Secret
    with pytest.raises(tr.UsageError, match="advance: next differs from torch by"):
        check_game(made, 0, steps=30)


def test_an_end_that_differs_is_counted() -> None:
    made = game(Ball)
    comparison = Comparison(made)
    state, clock = torch.tensor([[0.0, 0.0]]), torch.zeros(1, dtype=torch.int32)
    for _ in range(6):
        comparison.compare("terminated", {"next": state, "clock": clock}, {"terminated": torch.tensor([True])}, {})
    with pytest.raises(tr.UsageError, match="terminated differs from torch at 6 of"):
        comparison.verdict()


def test_the_command_and_its_errors(run_command: Callable[..., Any], tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    agent.save(tmp_path / "a")
    done = run_command("play", tmp_path / "a", "--out", tmp_path / "a.html")
    assert (done.code, done.err) == (0, "")
    assert "CartPole-v1 PPO" in done.out
    assert "agree to" in done.out
    for words, error in (
        ([], "play needs a run"),
        ([tmp_path / "nothing"], "is not a run"),
        ([tmp_path / "a", "--out", tmp_path / "a.txt"], "ends in .html"),
        ([tmp_path / "a", "--out", tmp_path / "a" / "config.yaml" / "x.html"], "cannot be written"),
    ):
        done = run_command("play", *words)
        assert done.code == 2
        assert error in done.err
        assert done.err.count("\n") == 1
    gym = tr.PPO("CartPole-v1", backend="gymnasium", **SMALL)
    with pytest.raises(tr.UsageError, match="only tensor environments can"):
        gym.play(tmp_path / "b.html")
    gym.close()
