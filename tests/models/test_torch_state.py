"""torch's random numbers and threads for the length of a block."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from marius_oac.models.compute.torch_state import seeded, torch_threads


@pytest.mark.parametrize("name", ["cpu", "cuda:1"])
def test_the_generators_of_the_device_have_the_seed_of_the_cpus_and_no_others(monkeypatch, name):
    told, forked, current, before = [], [], [], torch.get_rng_state()

    @contextmanager
    def entered(device):
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: told.append((*current, seed)))
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: forked.extend(devices) or nullcontext())
    device = torch.device(name)
    try:
        with seeded([3, 4], device):
            assert told == [(device, torch.initial_seed())] * (name != "cpu") and forked == [device] * len(told)
            assert not current
    finally:
        torch.set_rng_state(before)


def test_what_is_drawn_follows_from_the_numbers_alone_and_changes_nothing_outside():
    def draw(*source):
        with seeded(source, torch.device("cpu")):
            return torch.rand(3).tolist()

    before = torch.get_rng_state()
    assert draw(3, 4) == draw(3, 4) == draw(3, 4, 0) != draw(3, 5)
    assert torch.equal(before, torch.get_rng_state())


def test_torch_has_its_threads_again_also_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
