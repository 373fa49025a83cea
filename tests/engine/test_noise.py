from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightrope.engine import Noise, draw_noise, stream, stream_seed
from tightrope.models import Categorical, Gaussian

CPU = torch.device("cpu")
keys = st.tuples(
    st.integers(0, 2**40), st.text(min_size=1, max_size=8), st.integers(0, 10_000), st.integers(0, 1000)
)  # seed, name, phase, rank


@given(keys, keys)
def test_different_keys_have_different_seeds_and_equal_keys_equal_ones(one, other):
    assert (stream_seed(*one) == stream_seed(*other)) == (one == other)
    assert 0 <= stream_seed(*one) < 2**63


def test_names_and_numbers_do_not_run_together():
    assert stream_seed(1, "a", 11, 1) != stream_seed(1, "a", 1, 11) != stream_seed(11, "a", 1, 1)
    assert stream_seed(1, "1/1", 1, 1) != stream_seed(1, "1", 1, 1)


def test_seeds_are_the_same_in_every_process():
    assert stream_seed(1, "action", 2, 3) == 7115637651120066431


@pytest.mark.parametrize("key", [(2, "a", 3, 4), (1, "b", 3, 4), (1, "a", 4, 4), (1, "a", 3, 5)])
def test_streams_repeat_for_one_key_and_differ_for_another(key):
    first, again = (torch.rand(100, generator=stream(CPU, 1, "a", 3, 4)) for _ in range(2))
    other = torch.rand(100, generator=stream(CPU, *key))
    assert torch.equal(first, again)
    assert (first != other).all()


def phase_noise(action_noise=Categorical.noise, num_envs=3, num_steps=4, seed=1, phase=0) -> Noise:
    env = SimpleNamespace(num_envs=num_envs, device=CPU, noise_size=2)
    return draw_noise(env, action_noise, num_steps, (5, num_envs * num_steps), seed, phase)


def test_noise_has_a_number_for_everything_random_in_a_phase():
    noise = phase_noise()
    assert [tuple(part.shape) for part in noise] == [(3, 2), (4, 3), (4, 3, 2), (5, 12)]
    for part in noise:
        assert 0 <= part.min() < part.max() < 1


def test_action_noise_is_that_of_the_distribution():
    def gaussian(shape, generator):
        return Gaussian.noise((*shape, 6), generator)

    assert phase_noise(gaussian).action.shape == (4, 3, 6)
    assert phase_noise(gaussian).action.min() < 0


def test_a_phase_can_be_drawn_again():
    assert all(torch.equal(a, b) for a, b in zip(phase_noise(phase=7), phase_noise(phase=7), strict=True))


@pytest.mark.parametrize("change", [{"seed": 2}, {"phase": 1}])
def test_every_phase_of_every_seed_has_noise_of_its_own(change):
    for ours, other in zip(phase_noise(), phase_noise(**change), strict=True):
        assert (ours != other).all()


def test_parts_of_the_noise_are_unrelated():
    noise = phase_noise(num_envs=1, num_steps=2)
    heads = [part.flatten()[:2] for part in noise]
    assert len({tuple(head.tolist()) for head in heads}) == len(heads)


def test_resets_do_not_depend_on_how_the_policy_acts():
    def thirsty(shape, generator):
        return Categorical.noise((*shape, 50), generator)

    plain, other = phase_noise(), phase_noise(thirsty)
    assert torch.equal(plain.reset, other.reset)
    assert torch.equal(plain.start, other.start)
    assert torch.equal(plain.shuffle, other.shuffle)


def test_drawing_noise_neither_reads_nor_moves_the_global_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = phase_noise()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert all(torch.equal(a, b) for a, b in zip(first, phase_noise(), strict=True))


def test_shuffle_keys_order_into_a_new_permutation_each_pass():
    orders = phase_noise().shuffle.argsort(1)
    assert orders.sort(1).values.tolist() == [list(range(12))] * 5
    assert len({tuple(order) for order in orders.tolist()}) == 5
