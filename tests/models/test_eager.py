"""Optimizers without torch's compiler make the same steps, and import none of it."""

import sys

import pytest
import torch

from marius_oac.models.compute.eager import eager

KINDS = {
    torch.optim.SGD: {"lr": 0.1, "weight_decay": 0.01},
    torch.optim.Adagrad: {"lr": 0.1, "eps": 1e-8},
    torch.optim.Adam: {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.01},
}


def trained(kind, options):
    """Values and state after three steps, and whether the steps were without gradients."""
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(5, generator=draw, requires_grad=True)
    optimizer = kind([values], **options)
    for _ in range(3):
        optimizer.zero_grad()
        (values * torch.randn(5, generator=draw)).square().sum().backward()
        optimizer.step()
    other = kind([values], **options)
    other.load_state_dict(optimizer.state_dict())
    return values, [each for _, each in sorted(other.state[values].items())]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch(kind, monkeypatch):
    expected, state = trained(kind, KINDS[kind])
    for module in ("torch._dynamo", "torch._inductor"):
        monkeypatch.setitem(sys.modules, module, None)  # to import it is an error
    values, own = trained(eager(kind), KINDS[kind])
    assert torch.equal(values, expected) and len(own) == len(state)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(own, state, strict=True))
    assert isinstance(eager(kind)([values], **KINDS[kind]), kind)


def test_a_guarded_optimizer_would_import_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    with pytest.raises(ImportError):
        trained(torch.optim.SGD, KINDS[torch.optim.SGD])
