"""Each estimator against its definition, written out as sums over one column at a time."""

import math
import statistics
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jaxtyping import TypeCheckError
from torch import Tensor

from tightrope.functional import (
    alive_mask,
    collected_mask,
    discounted_returns,
    explained_variance,
    gae,
    masked_mean,
    mean_of_taken,
    running_returns,
    standardize,
    successor_values,
    timestep_mean,
)  # fmt: skip

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
GOES_ON, TERMINATES, IS_CUT = 0, 1, 2


class Window(NamedTuple):
    """A rollout of (T, N) steps. `final_value` is noise where no episode ended or where one terminated."""

    reward: Tensor
    value: Tensor
    final_value: Tensor
    last_value: Tensor
    terminated: Tensor
    truncated: Tensor

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated

    @property
    def next_value(self) -> Tensor:
        return successor_values(self.value, self.last_value, self.done, self.final_value)

    def tail(self, t: int, n: int) -> float:
        """What lies beyond step t: nothing, the final observation, the next row, or the observation carried on."""
        if self.terminated[t, n]:
            return 0.0
        if self.truncated[t, n]:
            return float(self.final_value[t, n])
        return float(self.value[t + 1, n] if t + 1 < len(self.value) else self.last_value[n])

    def rest(self, t: int, n: int) -> range:
        """The steps from t to the end of its episode, or of the window."""
        last = len(self.done) - 1
        return range(t, next((u for u in range(t, last) if self.done[u, n]), last) + 1)


def table(definition, window: Window) -> Tensor:
    """A (T, N) tensor from a definition of its entries."""
    rows, columns = window.reward.shape
    return torch.tensor([[float(definition(t, n)) for n in range(columns)] for t in range(rows)])


def numbers(shape, bound: float = 10.0):
    return arrays(np.float32, shape, elements=st.floats(-bound, bound, width=32)).map(torch.from_numpy)


def flags(shape):
    return arrays(np.bool_, shape).map(torch.from_numpy)


shapes = st.tuples(st.integers(1, 7), st.integers(1, 3))
discounts = st.floats(0.0, 1.0)


@st.composite
def windows(draw) -> Window:
    shape = draw(shapes)
    ending = torch.from_numpy(draw(arrays(np.int64, shape, elements=st.integers(GOES_ON, IS_CUT))))
    return Window(
        reward=draw(numbers(shape)),
        value=draw(numbers(shape)),
        final_value=draw(numbers(shape)),
        last_value=draw(numbers(shape[1:])),
        terminated=ending == TERMINATES,
        truncated=ending == IS_CUT,
    )


@given(windows())
def test_the_successor_of_a_step_that_did_not_terminate(window):
    goes_on = ~window.terminated
    torch.testing.assert_close(window.next_value[goes_on], table(window.tail, window)[goes_on], rtol=0, atol=0)


@given(windows(), discounts)
def test_returns_are_discounted_sums_to_the_end_of_the_episode(window, gamma):
    def definition(t, n):
        steps = window.rest(t, n)
        bootstrap = gamma ** len(steps) * window.tail(steps[-1], n)
        return sum(gamma ** (k - t) * float(window.reward[k, n]) for k in steps) + bootstrap

    returns = discounted_returns(window.reward, window.terminated, window.done, window.next_value, gamma)
    torch.testing.assert_close(returns, table(definition, window), **CLOSE)


@given(windows(), discounts)
def test_returns_without_a_critic_are_rewards_to_go_up_to_the_cut(window, gamma):
    def definition(t, n):
        return sum(gamma ** (k - t) * float(window.reward[k, n]) for k in window.rest(t, n))

    nothing = torch.zeros_like(window.reward)
    returns = discounted_returns(window.reward, window.terminated, window.done, nothing, gamma)
    torch.testing.assert_close(returns, table(definition, window), **CLOSE)


@given(windows(), discounts, discounts)
def test_gae_is_the_sum_of_decayed_temporal_differences(window, gamma, lam):
    def delta(t, n):
        return float(window.reward[t, n]) + gamma * window.tail(t, n) - float(window.value[t, n])

    def definition(t, n):
        return sum((gamma * lam) ** (k - t) * delta(k, n) for k in window.rest(t, n))

    advantage = gae(window.reward, window.value, window.next_value, window.terminated, window.done, gamma, lam)
    torch.testing.assert_close(advantage, table(definition, window), **CLOSE)


@given(windows(), discounts)
def test_gae_at_lambda_one_is_the_return_less_the_value(window, gamma):
    advantage = gae(window.reward, window.value, window.next_value, window.terminated, window.done, gamma, 1.0)
    returns = discounted_returns(window.reward, window.terminated, window.done, window.next_value, gamma)
    torch.testing.assert_close(advantage, returns - window.value, **CLOSE)


@given(windows(), discounts)
def test_gae_at_lambda_zero_is_the_temporal_difference(window, gamma):
    def delta(t, n):
        return float(window.reward[t, n]) + gamma * window.tail(t, n) - float(window.value[t, n])

    advantage = gae(window.reward, window.value, window.next_value, window.terminated, window.done, gamma, 0.0)
    torch.testing.assert_close(advantage, table(delta, window), **CLOSE)


@given(windows(), st.floats(0.5, 1.0), st.data())
def test_nothing_that_follows_an_episode_reaches_back_into_it(window, gamma, data):
    """Whatever the next episode looks like, its first observation above all, the one before it is judged the same."""
    t = data.draw(st.integers(0, len(window.done) - 1))
    assume(window.done[t].all())

    def estimates(w: Window) -> Tensor:
        advantage = gae(w.reward, w.value, w.next_value, w.terminated, w.done, gamma, 0.95)
        returns = discounted_returns(w.reward, w.terminated, w.done, w.next_value, gamma)
        return torch.stack([advantage, returns])[:, : t + 1]

    reward, value = window.reward.clone(), window.value.clone()
    reward[t + 1 :], value[t + 1 :] = 1e6, -1e6
    other = window._replace(reward=reward, value=value, last_value=window.last_value + 1e6)
    torch.testing.assert_close(estimates(other), estimates(window), rtol=0, atol=0)


@given(windows(), discounts)
def test_running_returns_look_back_to_the_start_of_the_episode(window, gamma):
    start = window.last_value

    def definition(t, n):
        first = max((u + 1 for u in range(t) if window.done[u, n]), default=0)
        carried = gamma ** (t + 1) * float(start[n]) if first == 0 else 0.0
        return sum(gamma ** (t - k) * float(window.reward[k, n]) for k in range(first, t + 1)) + carried

    returns, carried = running_returns(window.reward, window.done, start, gamma)
    torch.testing.assert_close(returns, table(definition, window), **CLOSE)
    assert torch.equal(carried, torch.where(window.done[-1], 0.0, returns[-1]))


def test_running_returns_go_on_from_one_rollout_to_the_next():
    reward, done = torch.arange(12.0).view(6, 2), torch.zeros(6, 2, dtype=torch.bool)
    done[1, 0] = True
    whole, _ = running_returns(reward, done, torch.zeros(2), 0.9)
    first, carried = running_returns(reward[:3], done[:3], torch.zeros(2), 0.9)
    second, _ = running_returns(reward[3:], done[3:], carried, 0.9)
    torch.testing.assert_close(torch.cat([first, second]), whole)


def one_column(*entries: float) -> Tensor:
    return torch.tensor(entries).unsqueeze(1)


def test_each_way_to_end_in_numbers():
    """Four steps of reward 1 and value 0 at gamma 1/2: the first is cut by the clock, the second goes on, the third
    terminates, the fourth meets the end of the window."""
    never = one_column(False, False, False, False)
    terminated, truncated = one_column(False, False, True, False), one_column(True, False, False, False)
    window = Window(
        reward=one_column(1.0, 1.0, 1.0, 1.0),
        value=one_column(0.0, 0.0, 0.0, 0.0),
        final_value=one_column(8.0, 99.0, 99.0, 99.0),
        last_value=torch.tensor([6.0]),
        terminated=terminated,
        truncated=truncated,
    )
    returns = discounted_returns(window.reward, terminated, window.done, window.next_value, 0.5)
    assert returns.flatten().tolist() == [1 + 8 / 2, 1 + 1 / 2, 1, 1 + 6 / 2]
    undisturbed = window._replace(terminated=never, truncated=never)
    returns = discounted_returns(window.reward, never, never, undisturbed.next_value, 0.5)
    assert returns.flatten().tolist() == [
        1 + 1 / 2 + 1 / 4 + 1 / 8 + 6 / 16,
        1 + 1 / 2 + 1 / 4 + 6 / 8,
        1 + 1 / 2 + 6 / 4,
        4,
    ]


@given(windows())
def test_estimators_leave_their_arguments_alone(window):
    before = [column.clone() for column in window]
    done = window.done
    next_value = window.next_value
    kept_done, kept_next = done.clone(), next_value.clone()
    gae(window.reward, window.value, next_value, window.terminated, done, 0.9, 0.9)
    discounted_returns(window.reward, window.terminated, done, next_value, 0.9)
    assert all(torch.equal(a, b) for a, b in zip(window, before, strict=True))
    assert torch.equal(done, kept_done)
    assert torch.equal(next_value, kept_next)


def test_double_precision_is_kept():
    reward = torch.ones(50, 1, dtype=torch.float64)
    never = torch.zeros(50, 1, dtype=torch.bool)
    nothing = torch.zeros_like(reward)
    total = math.fsum(0.9**k for k in range(50))
    assert float(discounted_returns(reward, never, never, nothing, 0.9)[0]) == pytest.approx(total, rel=1e-13)
    assert float(gae(reward, nothing, nothing, never, never, 0.9, 1.0)[0]) == pytest.approx(total, rel=1e-13)


@given(shapes.flatmap(flags))
def test_a_column_is_alive_up_to_its_first_ending(done):
    alive = alive_mask(done)
    for column, lived in zip(done.T.tolist(), alive.T.tolist(), strict=True):
        length = column.index(True) + 1 if True in column else len(column)
        assert lived == [t < length for t in range(len(column))]


@given(st.tuples(st.integers(1, 7), st.integers(1, 10)).flatmap(flags), st.integers(1, 10))
def test_a_rollout_runs_until_a_fraction_of_its_columns_has_died(terminated, tenths):
    running = collected_mask(terminated, tenths / 10).squeeze(1).tolist()
    for t, runs in enumerate(running):
        dead_before = sum(any(column[:t]) for column in terminated.T.tolist())
        assert runs == (dead_before < Fraction(tenths, 10) * terminated.shape[1])


@pytest.mark.parametrize(
    ("fraction", "columns", "deaths"), [(0.1, 30, 3), (0.07, 100, 7), (0.29, 100, 29), (0.5, 3, 2)]
)
def test_a_fraction_of_the_columns_is_counted_exactly(fraction, columns, deaths):
    """0.07 * 100 is a little over 7 in floating point; the seventh death still ends the rollout."""
    one_dies_each_step = torch.eye(columns, dtype=torch.bool)
    assert int(collected_mask(one_dies_each_step, fraction).sum()) == deaths


def test_the_mean_of_steps_taken_leaves_out_the_others_whatever_they_hold():
    x = torch.tensor([[1.0, 2.0], [math.inf, math.nan], [3.0, 8.0]])
    assert mean_of_taken(x, torch.tensor([0.0, 1.0, 0.0])).tolist() == [2.0, 5.0]


@given(shapes.flatmap(lambda shape: st.tuples(numbers(shape), flags(shape))))
def test_masked_mean_is_the_mean_of_what_the_mask_selects(case):
    x, mask = case
    selected = x[mask].tolist()
    assert float(masked_mean(x, mask)) == pytest.approx(statistics.fmean(selected) if selected else 0.0, abs=1e-5)


@given(shapes.flatmap(lambda shape: st.tuples(numbers(shape), flags(shape))))
def test_timestep_mean_is_over_the_columns_alive_in_that_row(case):
    x, alive = case
    mean = timestep_mean(x, alive)
    assert mean.shape == (len(x), 1)
    for row, lives, m in zip(x, alive, mean, strict=True):
        selected = row[lives].tolist()
        assert float(m) == pytest.approx(statistics.fmean(selected) if selected else 0.0, abs=1e-5)


@given(shapes.flatmap(numbers), st.floats(-5, 5), st.floats(0.1, 5))
def test_standardize_shifts_and_scales_by_the_statistics_given(x, mean, std):
    expected = torch.tensor([[(v - mean) / (std + 1e-8) for v in row] for row in x.tolist()])
    torch.testing.assert_close(standardize(x, torch.tensor(mean), torch.tensor(std)), expected, **CLOSE)


def test_standardize_by_its_own_statistics_gives_mean_0_and_deviation_1():
    x = torch.tensor([1.0, 2.0, 3.0, 10.0])
    z = standardize(x, x.mean(), x.std())
    assert statistics.fmean(z.tolist()) == pytest.approx(0, abs=1e-6)
    assert statistics.stdev(z.tolist()) == pytest.approx(1, abs=1e-6)


def test_standardize_of_equal_numbers_is_0():
    x = torch.full((4,), 3.0)
    assert standardize(x, x.mean(), x.std()).tolist() == [0, 0, 0, 0]
    assert standardize(x + 1, x.mean(), x.std(), eps=0.5).tolist() == [2, 2, 2, 2]


varied = numbers(st.integers(2, 20)).filter(lambda x: float(x.max() - x.min()) > 0.1)


@given(varied, st.data())
def test_explained_variance_by_definition(target, data):
    prediction = data.draw(numbers(target.shape))
    residual = [a - b for a, b in zip(target.tolist(), prediction.tolist(), strict=True)]
    expected = 1 - statistics.pvariance(residual) / statistics.pvariance(target.tolist())
    assert float(explained_variance(prediction, target)) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@given(varied, st.floats(-10, 10, width=32))
def test_explained_variance_is_1_when_perfect_and_0_when_constant(target, constant):
    assert float(explained_variance(target, target)) == 1
    assert float(explained_variance(torch.full_like(target, constant), target)) == pytest.approx(0, abs=1e-3)


@given(st.floats(-100, 100, width=32), st.integers(2, 40))
def test_explained_variance_of_a_constant_target_is_0(constant, count):
    target = torch.full((count,), constant)
    assert float(explained_variance(torch.linspace(-1, 1, count), target)) == 0


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1.0, 1e6])
def test_explained_variance_has_no_unit(scale):
    target, prediction = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 1.0, 2.0])
    assert float(explained_variance(prediction * scale, target * scale)) == pytest.approx(0.8, rel=1e-4)


def test_wrong_shapes_are_refused():
    x, flag = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(TypeCheckError, match="next_value"):
        gae(x, x, x[:2], flag, flag, 0.9, 0.9)
    with pytest.raises(TypeCheckError, match="last_value"):
        successor_values(x, torch.zeros(3), flag, x)
    with pytest.raises(TypeCheckError, match="done"):
        discounted_returns(x, flag, flag.float(), x, 0.9)
    with pytest.raises(TypeCheckError, match="mask"):
        masked_mean(x, flag.T)
    with pytest.raises(TypeCheckError, match="target"):
        explained_variance(x, x.flatten())


@pytest.mark.parametrize(("length", "width"), [(31, 2), (32, 2), (100, 1), (257, 7), (64, 300)])
def test_sums_over_long_windows_are_those_taken_row_by_row(length, width):
    """Long and narrow windows are summed by doubling."""
    generator = torch.Generator().manual_seed(length)
    x, start = torch.randn(length, width, generator=generator), torch.randn(width, generator=generator)
    done = torch.rand(length, width, generator=generator) < 0.03
    zero = torch.zeros(length, width)
    advantage = gae(x, zero, zero, done, done, 0.99, 0.95)
    returns, carried = running_returns(x, done, start, 0.99)
    behind, ahead = start, torch.zeros(width)
    for t in range(length):
        behind = x[t] + 0.99 * behind
        torch.testing.assert_close(returns[t], behind, **CLOSE)
        behind = behind * ~done[t]
    for t in reversed(range(length)):
        ahead = x[t] + 0.99 * 0.95 * ahead * ~done[t]
        torch.testing.assert_close(advantage[t], ahead, **CLOSE)
    torch.testing.assert_close(carried, behind, **CLOSE)
