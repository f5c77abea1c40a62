"""k-step Adam against Algorithm 2 as the paper writes it, and what it sends."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.dense.kstep import KStep
from marius_oac.nodes.groups.thread_group import ThreadGroup
from tests.nodes import naive
from tests.nodes.worlds import together

SIZES = [(3, 2), (2,), (2, 2)]
TOTAL = 12
NOBODYS = np.full(TOTAL, 1e6)
"""The gradient of an example that counts for nothing."""


def cut(flat):
    """Tensors of SIZES, the last one not contiguous."""
    parts = np.split(np.asarray(flat, np.float32), [6, 8])
    tensors = [torch.from_numpy(part.copy()).view(size) for part, size in zip(parts, SIZES, strict=True)]
    wide = torch.zeros(2, 5)
    wide[:, 1:3] = tensors[2]
    return [*tensors[:2], wide[:, 1:3]]


def flat_of(tensors):
    return np.concatenate([tensor.detach().reshape(-1).numpy() for tensor in tensors])


def quadratic(seed):
    """Gradients of |A_i (x - b_i)|^2 / 2 for trainer i, with noise that (t, i) alone decides."""

    def gradient(t, i, x):
        own, drawn = np.random.default_rng([seed, i]), np.random.default_rng([seed, i, t])
        scale, centre = own.uniform(0.5, 2, TOTAL), own.standard_normal(TOTAL)
        return scale * (x - centre) + 0.3 * drawn.standard_normal(TOTAL)

    return gradient


def train(group, start, gradient, steps, sync, rate=0.02, weight_decay=0.0):
    """Yields the parameters after each step."""
    parameters = cut(start)
    optimizer = sync.optimizer([{"params": parameters, "lr": rate, "weight_decay": weight_decay}])
    sync.attach(parameters)
    for t in range(1, steps + 1):
        found = gradient(t, group.rank, flat_of(parameters))
        for parameter, part in zip(parameters, cut(NOBODYS if found is None else found), strict=True):
            parameter.grad = part
        assert sync.reduce([parameter.grad for parameter in parameters], 0.0 if found is None else 1 / group.size)
        optimizer.step()
        sync.updated(t - 1)
        yield flat_of(parameters)


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_three_trainers_are_algorithm_2(k, beta1):
    """To the letter, no warm-up, v_0 = 0.5 so that it is no matter of luck that nothing blows up."""
    start, gradient = np.random.default_rng(1).standard_normal(TOTAL).astype(np.float32), quadratic(5)
    settings_ = {"k": k, "warm_up": 0, "epsilon": 0.5}

    def work(group):
        sync = KStep(group, betas=(beta1, 0.99), **settings_)
        return list(train(group, start, gradient, 150, sync, 0.05))

    found = np.array(together(ThreadGroup.members(3), work))
    oracle = naive.kstep_adam(np.tile(start, (3, 1)), gradient, rate=0.05, beta1=beta1, beta2=0.99, **settings_)
    for t, expected in enumerate(itertools.islice(oracle, 150)):
        np.testing.assert_allclose(found[:, t], expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))
        same = (found[1:, t] == found[0, t]).all()
        assert same == ((t + 1) % k == 0)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 4), st.integers(1, 7), st.integers(0, 9), st.sampled_from([0.0, 0.5]), st.integers(1, 25),
    st.integers(0, 1000),
)  # fmt: skip
def test_any_schedule_is_algorithm_2(size, k, warm_up, beta1, steps, seed):
    start, gradient = np.random.default_rng(seed).standard_normal(TOTAL).astype(np.float32), quadratic(seed)

    def work(group):
        sync = KStep(group, k, warm_up, (beta1, 0.9), 0.1)
        found = list(train(group, start, gradient, steps, sync))
        sync.finish()
        return found, flat_of(sync._live), sync.metrics()

    outcomes = together(ThreadGroup.members(size), work)
    oracle = naive.kstep_adam(np.tile(start, (size, 1)), gradient, k, 0.02, beta1, 0.9, 0.1, warm_up)
    expected = np.array(list(itertools.islice(oracle, steps)))
    np.testing.assert_allclose(np.array([found for found, _, _ in outcomes]).swapaxes(0, 1), expected, atol=1e-5)
    merges = sum(t <= warm_up or t % k == 0 for t in range(1, steps + 1))
    for _, final, metrics in outcomes:
        np.testing.assert_allclose(final, expected[-1].mean(0), atol=1e-5)
        assert (final == outcomes[0][1]).all()
        assert (metrics["syncs"], metrics["iterations"]) == (size * merges, size * steps)


@pytest.mark.parametrize("k", [1, 4])
def test_weights_decay_as_in_adam_and_who_has_no_example_makes_no_step(k):
    """Trainer 1 has none in every third step, a merge among them; nobody has one in step 8."""
    own = quadratic(5)

    def gradient(t, i, x):
        return None if (i == 1 and t % 3 == 0) or t == 8 else own(t, i, x)

    def work(group):
        sync = KStep(group, k, 2, (0.5, 0.9), 0.1)
        return list(train(group, np.ones(TOTAL, np.float32), gradient, 20, sync, weight_decay=0.3))

    found = np.array(together(ThreadGroup.members(3), work)).swapaxes(0, 1)
    oracle = naive.kstep_adam(np.ones((3, TOTAL)), gradient, k, 0.02, 0.5, 0.9, 0.1, 2, 0.3)
    np.testing.assert_allclose(found, np.array(list(itertools.islice(oracle, 20))), atol=1e-5)


def test_merged_parameters_are_not_exchanged_again_when_training_ends():
    def work(group):
        sync = KStep(group, 5, 0, epsilon=1.0)
        last = list(train(group, np.ones(TOTAL, np.float32), quadratic(3), 10, sync))[-1]
        before = sync._channel.bytes_sent
        sync.finish()
        counts = len(json.dumps(sync._counts()))
        return last.tobytes() == flat_of(sync._live).tobytes(), sync._channel.bytes_sent - before <= 2 * (counts + 4)

    assert together(ThreadGroup.members(3), work) == [(True, True)] * 3


def test_without_warm_up_a_small_epsilon_blows_up_and_with_it_it_does_not():
    """The trap in the letter of the algorithm, and the way around it."""

    def largest(warm_up):
        def work(group):
            sync = KStep(group, 10, warm_up)
            return np.abs(list(train(group, np.ones(TOTAL, np.float32), quadratic(2), 130, sync, 0.01))).max()

        with np.errstate(over="ignore"):
            return max(together(ThreadGroup.members(2), work))

    assert largest(0) > 1e6
    assert largest(100) < 10


@pytest.mark.parametrize("k", [1, 10, 20, 50])
def test_bytes_are_one_kth_of_merging_in_every_step(k):
    def work(group):
        sync = KStep(group, k, 0, epsilon=1.0)
        list(train(group, np.ones(TOTAL, np.float32), quadratic(2), 100, sync, 0.001))
        return sync.metrics()

    for metrics in together(ThreadGroup.members(2), work):
        assert metrics["average_sync_gap"] == k
        assert metrics["bytes"] == 100 // k * 2 * TOTAL * 4  # two exchanges; a ring of two sends all of each
        assert metrics["bytes_per_sync"] == 2 * TOTAL * 4


def test_the_state_of_the_optimizer_goes_on_where_it_was():
    """A checkpoint between merges: parameters, and the optimizer's tensors by name."""
    start, gradient = np.ones(TOTAL, np.float32), quadratic(9)

    def run(group, begin, steps, kept=None):
        sync = KStep(group, 4, 2)
        parameters = cut(start)
        optimizer = sync.optimizer([{"params": parameters, "lr": 0.02, "weight_decay": 0.0}])
        sync.attach(parameters)
        mine = [{"x": parameter, **optimizer.state[parameter]} for parameter in parameters]
        for tensors, values in zip(mine, kept or mine, strict=True):
            for name, tensor in tensors.items():
                tensor.copy_(values[name])
        for t in range(begin + 1, begin + steps + 1):
            for parameter, part in zip(parameters, cut(gradient(t, group.rank, flat_of(parameters))), strict=True):
                parameter.grad = part
            optimizer.step()
        return [{name: tensor.clone() for name, tensor in tensors.items()} for tensors in mine]

    whole = together(ThreadGroup.members(2), lambda group: run(group, 0, 13))
    first = together(ThreadGroup.members(2), lambda group: run(group, 0, 7))
    second = together(ThreadGroup.members(2), lambda group: run(group, 7, 6, first[group.rank]))
    for one, other in zip(whole, second, strict=True):
        for tensors, again in zip(one, other, strict=True):
            assert all(torch.equal(tensors[name], again[name]) for name in tensors)
