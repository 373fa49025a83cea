"""Hybrid actions: each part has a distribution of its own, unused parts count for nothing, gradients are autograd's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributions as td
from torch.utils._python_dispatch import TorchDispatchMode

from tightrope.errors import UsageError
from tightrope.functional import PPOLoss, VPGLoss
from tightrope.models import ActorCritic, Hybrid, NetworkConfig, actor_critic
from tightrope.models.action_mask import choice_columns, forbids_all, mask_columns, mask_rows, next_allowed, with_mask
from tightrope.models.hybrid_spec import flat_action, flat_parts, options, uses_of
from tightrope.types import Batch, Box, Composite, Discrete, MultiDiscrete, Spec, Trajectories

SEEN = Box((4,))
PLAIN = Composite((("kind", Discrete(3)), ("power", Box((2,), -2.0, 6.0))))
NESTED = Composite(
    (
        ("kind", Discrete(3)),
        ("arm", Composite((("grip", MultiDiscrete((2, 4))), ("reach", Box((2, 2), 0.0, 1.0))))),
        ("mode", Discrete(20)),
    )
)
CONDITIONAL = Composite(
    (*NESTED.parts, ("power", Box((1,)))),
    conditions=(("arm", "kind", (1, 2)), ("power", "mode", tuple(range(3, 15))), ("mode", "kind", (0,))),
)
SPECS = {"plain": PLAIN, "nested": NESTED, "conditional": CONDITIONAL}
ROWS = 64


def a_policy(action: Spec, masked: bool = False, **config: Any) -> tuple[ActorCritic, Tensor]:
    """(policy away from its flat start, observations)."""
    torch.manual_seed(0)
    seen = with_mask(SEEN, action) if masked else SEEN
    policy = actor_critic(seen, action, NetworkConfig(**{"hidden_sizes": (16,)} | config))
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            parameter.add_((0.05 if "log_std_layer" in name else 0.5) * torch.randn_like(parameter))
    return policy, policy.valid_rows(torch.randn(ROWS, *seen.shape))


def sampled(policy: ActorCritic, obs: Tensor, seed: int = 1) -> Tensor:
    noise = policy.head.noise((len(obs),), torch.Generator().manual_seed(seed))
    return policy.distribution(obs).sample(noise).detach()


def by_hand(policy: Any, obs: Tensor, action: Composite) -> list[td.Distribution]:
    """torch's distribution of every part, from the weights of its head."""
    split = policy.action_mask
    seen, mask = (obs, None) if split is None else split(obs)
    features, found = policy.actor(seen), []
    for head, (_, part) in zip(policy.head.heads, flat_parts(action), strict=True):
        if isinstance(part, Box):
            log_std = head.log_std if head.log_std_layer is None else head.log_std_layer(features).clamp(-20, 2)
            found.append(td.Independent(td.Normal(head.mean(features), log_std.exp().expand(ROWS, -1)), 1))
            continue
        choices, first = [], 0
        for i, n in enumerate(options(part)):
            logits = head.logits(features).view(ROWS, len(options(part)), -1)[:, i, :n]
            if mask is not None:
                logits = logits.masked_fill(mask[:, first : first + n] == 0, -torch.inf)
                first += n
            choices.append(td.Categorical(logits=logits))
        mask = None if mask is None else mask[:, first:]
        found.append(choices[0] if isinstance(part, Discrete) else Several(choices))
    return found


class Several(td.Distribution):
    """Independent choices."""

    def __init__(self, choices: list[td.Categorical]) -> None:
        super().__init__(validate_args=False)
        self.choices = choices

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.stack([c.log_prob(x) for c, x in zip(self.choices, value.unbind(-1), strict=True)]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([c.entropy() for c in self.choices]).sum(0)


def used_by_hand(action: Composite, row: dict[str, Tensor]) -> dict[str, Tensor]:
    """Which parts of CONDITIONAL, or all of another space, these actions use."""
    everything = {name: torch.ones(ROWS, dtype=torch.bool) for name, _ in flat_parts(action)}
    if action is not CONDITIONAL:
        return everything
    mode = row["kind"] == 0
    arm = (row["kind"] == 1) | (row["kind"] == 2)
    power = mode & (row["mode"] >= 3) & (row["mode"] < 15)
    return everything | {"arm/grip": arm, "arm/reach": arm, "mode": mode, "power": power}


def sums_by_hand(policy: ActorCritic, obs: Tensor, action: Composite, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy of the used parts) of each action, by torch.distributions."""
    flat = flat_action(action)
    assert isinstance(flat, Composite)
    row = flat.split(rows)
    used, log_prob, entropy = used_by_hand(action, row), torch.zeros(ROWS), torch.zeros(ROWS)
    for (name, part), distribution in zip(flat.parts, by_hand(policy, obs, action), strict=True):
        value = row[name].flatten(1) if isinstance(part, Box) else row[name]
        log_prob = log_prob + distribution.log_prob(value) * used[name]
        entropy = entropy + distribution.entropy() * used[name]
    return log_prob, entropy


# the distribution ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("log_std", ["free", "state"])
@pytest.mark.parametrize("name", SPECS)
def test_log_probabilities_and_entropies_are_those_of_torch_part_by_part(name: str, log_std: str, masked: bool) -> None:
    action = SPECS[name]
    policy, obs = a_policy(action, masked, log_std=log_std)
    rows = sampled(policy, obs)
    distribution = policy.distribution(obs)
    log_prob, entropy = sums_by_hand(policy, obs, action, rows)
    torch.testing.assert_close(distribution.log_prob(rows), log_prob)
    torch.testing.assert_close(distribution.entropy(rows), entropy)


def test_the_joint_entropy_is_what_its_estimate_is_on_average() -> None:
    """Exactly, over all values of the choices that decide; and by the definition -E log p, over many samples."""
    policy, obs = a_policy(CONDITIONAL)
    distribution = policy.distribution(obs)
    assert isinstance(distribution, Hybrid)
    kind, mode = (distribution.parts[i].probs for i in (0, 3))  # type: ignore[union-attr]
    rows, total = sampled(policy, obs), torch.zeros(ROWS)
    for k in range(3):
        for m in range(20):
            rows[:, 0], rows[:, 7] = k, m
            total = total + kind[:, k] * mode[:, m] * distribution.entropy(rows)
    torch.testing.assert_close(distribution.entropy(), total)
    many = obs.repeat(2000, 1)
    draws = policy.distribution(many).log_prob(sampled(policy, many)).view(2000, ROWS)
    torch.testing.assert_close(distribution.entropy(), -draws.mean(0), rtol=0.1, atol=0.1)


def test_the_divergence_weighs_a_part_by_the_probability_of_its_use() -> None:
    policy, obs = a_policy(CONDITIONAL)
    p, q = policy.distribution(obs), policy.distribution(obs + 0.3)
    many = obs.repeat(3000, 1)
    rows = sampled(policy, many)
    difference = policy.distribution(many).log_prob(rows) - policy.distribution(many + 0.3).log_prob(rows)
    estimate = difference.view(3000, ROWS).mean(0)
    assert isinstance(p, Hybrid)
    assert isinstance(q, Hybrid)
    torch.testing.assert_close(p.kl(q), estimate, rtol=0.15, atol=0.05)
    assert p.kl(p).abs().max() < 1e-5


@pytest.mark.parametrize("name", SPECS)
def test_sampling_is_a_function_of_the_noise_and_each_part_has_noise_of_its_own(name: str) -> None:
    policy, obs = a_policy(SPECS[name])
    head, distribution = policy.head, policy.distribution(obs)
    noise = head.noise((ROWS,), torch.Generator().manual_seed(3))
    rows = distribution.sample(noise)
    assert torch.equal(rows, distribution.sample(noise.clone()))
    assert rows.shape == noise.shape == (ROWS, SPECS[name].shape[0])
    start = 0
    for size in head.sizes:
        changed = noise.clone()
        changed[:, start : start + size] = head.noise((ROWS,), torch.Generator().manual_seed(4))[
            :, start : start + size
        ]
        differs = (distribution.sample(changed) != rows).any(0)
        assert differs[start : start + size].any()
        differs[start : start + size] = False
        assert not differs.any(), "noise of one part moves another"
        start += size
    many = head.noise((20_000,), torch.Generator().manual_seed(5)).T.corrcoef()
    assert (many - torch.eye(len(many))).abs().max() < 0.04


def test_the_mode_is_that_of_every_part_and_rows_fit_the_environment() -> None:
    policy, obs = a_policy(NESTED)
    distribution = policy.distribution(obs)
    row = flat_action(NESTED).split(distribution.mode())  # type: ignore[union-attr]
    kind, grip, reach, mode = by_hand(policy, obs, NESTED)
    assert torch.equal(row["kind"], kind.probs.argmax(1))  # type: ignore[attr-defined]
    assert torch.equal(row["mode"], mode.probs.argmax(1))  # type: ignore[attr-defined]
    assert torch.equal(row["arm/grip"], torch.stack([c.probs.argmax(1) for c in grip.choices], 1))  # type: ignore[attr-defined]
    torch.testing.assert_close(row["arm/reach"].flatten(1), reach.mean)
    rows = 3 * sampled(policy, obs).view(8, 8, -1)  # of several dimensions, as in a video
    given = policy.head.to_env(rows)
    torch.testing.assert_close(given[..., 3:7], (0.5 + 0.5 * rows[..., 3:7]).clamp(0, 1))
    assert torch.equal(given[..., [0, 1, 2, 7]], rows[..., [0, 1, 2, 7]])


# gradients ----------------------------------------------------------------------------------------------------------------


def a_batch(policy: ActorCritic, obs: Tensor, kind: type[Batch]) -> Any:
    rows, numbers = sampled(policy, obs), torch.randn(4, ROWS)
    with torch.no_grad():
        distribution, value = policy(obs)
        log_prob = distribution.log_prob(rows) + 0.3 * numbers[0]
    columns = obs, rows, log_prob, value + 0.3 * numbers[1], numbers[2], numbers[3]
    return kind(*columns, *([torch.rand(ROWS) < 0.8] if kind is Trajectories else []))


def ppo_by_hand(policy: ActorCritic, action: Composite, batch: Batch) -> Tensor:
    log_prob, entropy = sums_by_hand(policy, batch.obs, action, batch.action)
    ratio = (log_prob - batch.log_prob).exp()
    surrogate = torch.min(ratio * batch.advantage, ratio.clamp(0.8, 1.2) * batch.advantage).mean()
    critic = 0.5 * (policy.value(batch.obs) - batch.target).square().mean()
    return -surrogate + 0.5 * critic - 0.03 * entropy.mean()


def vpg_by_hand(policy: ActorCritic, action: Composite, batch: Any) -> Tensor:
    log_prob, entropy = sums_by_hand(policy, batch.obs, action, batch.action)
    weight = (log_prob - batch.log_prob).exp().detach().clamp(0.8, 1.2)
    critic = 0.5 * (policy.value(batch.obs) - batch.target).square()
    per_row = -weight * log_prob * batch.advantage + 0.5 * critic - 0.03 * entropy
    return per_row[batch.alive].mean()


LOSSES: dict[str, tuple[Any, Callable[..., Tensor], type[Batch]]] = {
    "ppo": (PPOLoss(0.2, 0.5, 0.03, False), ppo_by_hand, Batch),
    "vpg": (VPGLoss(True, 0.2, 0.5, 0.03), vpg_by_hand, Trajectories),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("algo", LOSSES)
def test_the_gradient_of_both_losses_is_that_of_the_equations_written_out(algo: str, name: str, masked: bool) -> None:
    loss, reference, kind = LOSSES[algo]
    policy, obs = a_policy(SPECS[name], masked)
    batch = a_batch(policy, obs, kind)
    parameters = list(policy.parameters())
    mine = torch.autograd.grad(loss(policy, batch)[0], parameters)
    theirs = torch.autograd.grad(reference(policy, SPECS[name], batch), parameters)
    for (where, _), a, b in zip(policy.named_parameters(), mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=where)
    assert all(grad.abs().sum() > 0 for grad in mine)


@pytest.mark.parametrize("algo", LOSSES)
def test_an_unused_part_has_no_gradient_at_all(algo: str) -> None:
    loss, _, kind = LOSSES[algo]
    policy, obs = a_policy(CONDITIONAL)
    batch = a_batch(policy, obs, kind)
    seen: list[Hybrid] = []

    def watched(obs: Tensor) -> Any:
        distribution, value = policy(obs)
        seen.append(distribution)  # type: ignore[arg-type]
        for part in distribution.parts:  # type: ignore[union-attr]
            part[0].retain_grad()
        return distribution, value

    loss(watched, batch)[0].backward()
    counted = batch.alive if kind is Trajectories else torch.ones(ROWS, dtype=torch.bool)
    used = used_by_hand(CONDITIONAL, flat_action(CONDITIONAL).split(batch.action))  # type: ignore[union-attr]
    for (name, _), part in zip(flat_parts(CONDITIONAL), seen[0].parts, strict=True):
        grad = part[0].grad.flatten(1)  # type: ignore[union-attr]
        assert (grad[~used[name]] == 0).all(), name
        assert (grad[used[name] & counted].abs().sum(1) > 0).any(), name

    unused = batch.take(slice(0, ROWS))
    unused.action[:, 0] = 0  # so that the arm is not used
    policy.zero_grad()
    loss(policy, unused)[0].backward()
    for i, part in enumerate(flat_parts(CONDITIONAL)):
        touched = sum(float(p.grad.abs().sum()) for p in policy.head.heads[i].parameters())  # type: ignore[union-attr]
        assert (touched == 0) == part[0].startswith("arm/"), part[0]


class NoHostReads(TorchDispatchMode):
    """Refuses operations that wait for a device."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "item", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.READS, func
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_on_the_host_so_that_a_graph_can_capture_it() -> None:
    policy, obs = a_policy(CONDITIONAL, masked=True)
    noise = policy.head.noise((ROWS,), torch.Generator().manual_seed(3))
    batch = a_batch(policy, obs, Batch)
    with NoHostReads():
        distribution, _ = policy(obs)
        rows = distribution.sample(noise)
        distribution.log_prob(rows)
        distribution.mode()
        policy.head.to_env(rows)
        LOSSES["ppo"][0](policy, batch)[0].backward()


# masks ----------------------------------------------------------------------------------------------------------------------


def test_masks_of_all_choices_are_side_by_side_and_nothing_forbidden_is_taken() -> None:
    assert options(NESTED) == (3, 2, 4, 20)
    policy, obs = a_policy(NESTED, masked=True)
    columns = mask_columns(with_mask(SEEN, NESTED), NESTED)
    assert columns == slice(4, 33)
    mask = obs[:, columns]
    assert 0.2 < mask.mean() < 0.8
    starts = torch.tensor([0, 3, 5, 9])
    for row in [*(sampled(policy, obs, seed) for seed in range(50)), policy.distribution(obs).mode()]:
        choices = row[:, choice_columns(NESTED)].long() + starts
        assert (mask.gather(1, choices) == 1).all()
    random = np.stack([np.array([2, 1, 3, 0.3, 0.4, 0.5, 0.6, 19])] * ROWS)
    moved = next_allowed(random, mask.numpy(), NESTED)
    assert (mask.gather(1, torch.tensor(moved[:, choice_columns(NESTED)]).long() + starts) == 1).all()
    assert (moved[:, 3:7] == random[:, 3:7]).all()


def test_masks_may_be_nested_like_the_action() -> None:
    row = [1, 0, 1, 0, 1, 1, 1, 1, 0] + [1] * 20
    given: list[Any] = [
        row,
        tuple(row),
        {"kind": [1, 0, 1], "arm": {"grip": ([0, 1], [1, 1, 1, 0]), "reach": None}},
        {"kind": np.array([1, 0, 1]), "arm": {"grip": [0, 1, 1, 1, 1, 0]}, "mode": [1] * 20},
    ]
    for mask in given:
        assert mask_rows(mask, NESTED).tolist() == [row]
    both = {"kind": np.array([[1, 0, 1], [1, 1, 0]]), "arm": {"grip": [0, 1, 1, 1, 1, 0]}}
    rows = mask_rows(both, NESTED, 2)
    assert rows[:, :3].tolist() == [[1, 0, 1], [1, 1, 0]]
    assert (rows[:, 3:] == np.array(row[3:])).all()
    pair = Composite((("0", Discrete(2)), ("1", Box((1,)))))
    assert mask_rows(([0, 1], None), pair).tolist() == [[0, 1]]
    assert not forbids_all(rows, NESTED).any()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ({"kin": [1, 0, 1]}, "mask has a part 'kin': the choices are kind, arm/grip, mode"),
        ({"kind": [1, 0]}, r"mask\['kind'\] has shape \(2,\): give one entry for each of 3 options"),
        ({"arm": {"reach": [1]}}, r"mask\['arm/reach'\] is given, and that part is no choice: drop it"),
        ({"kind": [0, 0, 0]}, "mask allows nothing: allow an option of each choice"),
        ({"kind": [2, 0, 0]}, "mask has 2: give 0 for forbidden and 1 for allowed options"),
        ([1, 0], r"mask has shape \(2,\): give one entry for each of 29 options"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(mask: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        mask_rows(mask, NESTED)


# the space ------------------------------------------------------------------------------------------------------------------


def test_nested_names_are_joined_and_a_condition_holds_for_everything_inside() -> None:
    names = [name for name, _ in flat_parts(CONDITIONAL)]
    assert names == ["kind", "arm/grip", "arm/reach", "mode", "power"]
    assert uses_of(CONDITIONAL) == ((1, 0, (1, 2)), (2, 0, (1, 2)), (3, 0, (0,)), (4, 3, tuple(range(3, 15))))
    inner = Composite((("a", Discrete(2)), ("b", Box((1,)))), conditions=(("b", "a", (1,)),))
    outer = Composite((("x", inner),))
    assert flat_action(outer) == Composite(
        (("x/a", Discrete(2)), ("x/b", Box((1,)))), conditions=(("x/b", "x/a", (1,)),)
    )
    assert flat_action(PLAIN) is PLAIN


TWO = (("kind", Discrete(3)), ("power", Box((1,))))


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Composite(()), "an action of no parts is empty: give at least one"),
        (Composite((*TWO, ("kind", Discrete(2)))), "an action has two parts called 'kind': rename one of them"),
        (
            Composite((("pixels", Box((3,), 0, 255, torch.uint8)),)),
            "part 'pixels' of .* is not supported: give Discrete",
        ),
        (Composite((("n", Discrete(1 << 25)),)), "part 'n' has more than 16,777,216 options: give fewer"),
        (Composite(TWO, conditions=(("pwer", "kind", (1,)),)), "names 'pwer': its parts are kind, power"),
        (Composite(TWO, conditions=(("power", "kid", (1,)),)), "names 'kid': its parts are kind, power"),
        (Composite(TWO, conditions=(("kind", "power", (1,)),)), "depends on 'power', which is not Discrete"),
        (Composite(TWO, conditions=(("power", "kind", (3,)),)), "has values outside 0 .. 2: give those of 'kind'"),
        (Composite(TWO, conditions=(("power", "kind", ()),)), "has values outside 0 .. 2: give those of 'kind'"),
        (Composite(TWO, conditions=(("power", "kind", (1,)), ("power", "kind", (2,)))), "is the second for 'power'"),
        (
            Composite((*TWO, ("k", Discrete(2))), conditions=(("kind", "k", (1,)), ("k", "kind", (1,)))),
            "conditions depend on each other .*: drop one of them",
        ),
    ],
)
def test_a_wrong_space_is_one_line(action: Composite, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        actor_critic(SEEN, action, NetworkConfig())
    assert "\n" not in str(caught.value)


def test_a_part_is_learned_like_an_action_of_its_own() -> None:
    """One part alone: the same head, the same numbers."""
    alone, obs = a_policy(PLAIN.parts[1][1])
    hybrid = actor_critic(SEEN, Composite((PLAIN.parts[1],)), NetworkConfig(hidden_sizes=(16,)))
    weights = alone.state_dict()
    hybrid.load_state_dict({name.replace("head.", "head.heads.0.") if name.startswith("head.") else name: x
                            for name, x in weights.items()})  # fmt: skip
    rows = sampled(alone, obs)
    assert torch.equal(rows, sampled(hybrid, obs))
    torch.testing.assert_close(hybrid.distribution(obs).log_prob(rows), alone.distribution(obs).log_prob(rows))
