"""Compare the programs of a game with torch, step by step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..draw import drawn_arguments
from ..engine import isolated_rng
from ..errors import UsageError
from ..scene import coordinates
from .game import Game, played
from .replay import Replay

Tensors = Mapping[str, Tensor]
STEPS = 1_000
MOST = 1e-3  # relative to the largest number of a column, or to 1
FLIPS = 0.005  # share of steps at which rounding may decide a choice or an end
EXAMPLES = 12  # steps that the page computes again
WIDE = 2.0  # a slider's constant, relative to its value, at which a step is compared too


class Comparison:
    """Runs programs and methods side by side and collects the differences."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.replays = {name: Replay(program) for name, program in game.programs.items()}
        self.errors: dict[str, float] = {}
        self.sizes: dict[str, float] = {}
        self.flips: dict[str, int] = {}
        self.examples: list[dict[str, object]] = []
        self.steps = 0

    def compare(
        self,
        name: str,
        inputs: Tensors,
        wanted: Tensors,
        attributes: Mapping[str, float],
        keep: bool = False,
    ) -> None:
        got = self.replays[name](inputs, attributes)
        for output, right in wanted.items():
            mine, right = got[output].double(), right.detach().cpu()
            both_odd = ~mine.isfinite() & ~right.isfinite()
            difference = torch.where(both_odd, 0.0, (mine - right.double()).abs())
            worst = float(difference.max()) if difference.numel() else 0.0
            where = f"{name}: {output}" if output != name else name
            if right.dtype.is_floating_point and output not in ("action", "sampled"):
                self.sizes[where] = max(self.sizes.get(where, 1.0), float(right.abs().nan_to_num(0, 0, 0).max()))
                self.errors[where] = max(self.errors.get(where, 0.0), worst if worst == worst else float("inf"))
            else:
                self.flips[where] = self.flips.get(where, 0) + (
                    not worst <= MOST * max(1.0, float(right.double().abs().max()))
                )
        if keep:
            self.examples.append(
                {
                    "program": name,
                    "inputs": {k: v.flatten().tolist() for k, v in inputs.items()},
                    "outputs": {k: v.double().flatten().tolist() for k, v in wanted.items()},
                }
            )

    def step(self, state: Tensor, obs: Tensor, memory: Tensor | None, noise: Tensor, keep: bool) -> dict[str, Tensor]:
        """Compare everything in one state; returns what torch computed."""
        env, values = self.game.env, self.game.attributes
        self.steps += 1
        clock = {"clock": env.clock.clone()}
        mind = played(self.game.policy, obs, memory, noise)
        given = {"obs": obs, "noise": noise} | ({} if memory is None else {"memory": memory})
        self.compare("policy", given, mind, values, keep)
        action = mind["action"]
        if keep and "scene" in self.replays:
            shown = coordinates(env.scene(*drawn_arguments(env, obs, action)), 1)
            self.compare("scene", {"obs": obs, "action": action, **clock}, {"numbers": shown}, values, keep)
        following = env._apply("advance", state, action)
        pair = {"state": state, "action": action}
        self.compare("advance", {**pair, **clock}, {"next": following}, values, keep)
        reward = env._apply("reward", state, action, following)
        self.compare("reward", {**pair, "next": following, **clock}, {"reward": reward}, values)
        over = env._apply("terminated", following)
        self.compare("terminated", {"next": following, **clock}, {"terminated": over}, values)
        env.clock += 1
        seen = env._show(following)
        self.compare("observe", {"state": following, "clock": env.clock.clone()}, {"obs": seen}, values)
        return {**mind, "next": following, "reward": reward, "terminated": over, "obs": seen}

    def verdict(self) -> str:
        """One sentence; UsageError if a difference is more than rounding."""
        title = self.game.title
        for where, error in self.errors.items():
            if not error <= MOST * self.sizes[where]:
                raise UsageError(
                    f"{title} cannot be played in a browser: {where} differs from torch by {error:.1e}: its methods may use "
                    "nothing but their arguments and constants"
                )
        for where, count in self.flips.items():
            if count > max(1, FLIPS * self.steps):
                raise UsageError(
                    f"{title} cannot be played in a browser: {where} differs from torch at {count} of {self.steps:,} steps"
                )
        worst = max(self.errors[where] / self.sizes[where] for where in self.errors)
        digits = f"{max(worst, 1e-9):.0e}".replace("e-0", "e-")
        return f"Compared with PyTorch at {self.steps:,} steps: states, rewards, ends and decisions agree to {digits}."


@torch.no_grad()
def check_game(game: Game, seed: int, steps: int = STEPS) -> None:
    """Play in torch, and compare each method with its program from torch's own states. Sets the game's `agreement`,
    `checks` and `push`. UsageError if they differ."""
    env, policy, comparison = game.env, game.policy, Comparison(game)
    with isolated_rng(seed, env.device):
        generator = torch.Generator(env.device).manual_seed(seed)
        rows = policy.memory_rows
        blank = None if rows is None else torch.zeros(1, rows.state_size, device=env.device)
        obs, memory, states = env.reset(seed), blank, []
        state = env.state.clone()
        for t in range(steps):
            noise = policy.head.noise((1,), generator)
            found = comparison.step(state, obs, memory, noise, keep=t % (-(-steps // EXAMPLES)) == 0)
            states.append(state)
            state, obs, memory = found["next"], found["obs"], found.get("memory")
            limit = env.max_episode_steps
            if (
                bool(found["terminated"])
                or (limit is not None and int(env.clock) >= limit)
                or not bool(state.isfinite().all())
            ):
                start = torch.rand(1, env.noise_size, generator=generator, device=env.device)
                env.clock.zero_()
                state = env._apply("initial", start)
                comparison.compare("initial", {"noise": start, "clock": env.clock}, {"state": state}, game.attributes)
                obs, memory = env._show(state), blank
        check_sliders(game, comparison, states[-1], played(policy, obs, memory, noise)["action"])
    env.clock.zero_()
    game.agreement, game.checks = comparison.verdict(), comparison.examples
    usual = torch.cat(states).double().std(0).nan_to_num(0.0)
    game.push = [float(x) for x in env.push] or (0.5 * usual).tolist()


def check_sliders(game: Game, comparison: Comparison, state: Tensor, action: Tensor) -> None:
    """Compare a step with other values of the constants."""
    env = game.env
    for name, value in game.attributes.items():
        before = dict(vars(env))
        vars(env)[name] = value * WIDE
        try:
            wanted = {"next": env._apply("advance", state, action)}
        finally:
            vars(env).clear()
            vars(env).update(before)
        inputs = {"state": state, "action": action, "clock": env.clock}
        comparison.compare("advance", inputs, wanted, {**game.attributes, name: value * WIDE})
