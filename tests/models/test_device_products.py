"""What `compute.precision` asks of torch on a GPU."""

import numpy as np
import pytest
import torch

from marius_oac.models.compute import device_products
from marius_oac.models.compute.device_products import RoundedProducts, products_on

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def flags():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_tf32_is_torchs_flags_within_the_block():
    before = flags()
    with products_on(GPU, "tf32"):
        assert flags() == (True, True)
    assert flags() == before and not before[0]
    with pytest.raises(RuntimeError), products_on(GPU, "tf32"):
        raise RuntimeError
    assert flags() == before


def test_nothing_is_asked_for_float32_nor_of_a_cpu():
    before = flags()
    for device, precision in ((GPU, "float32"), (CPU, "tf32"), (CPU, "bfloat16")):
        with products_on(device, precision) as mode:
            assert flags() == before and mode is None
            x = torch.full((2, 2), 1 + 2**-10)
            assert (x @ torch.eye(2) == x).all()


def test_products_are_rounded_and_nothing_else(monkeypatch):
    """By autocast of the device's kind, of which the CPU's is like a GPU's."""
    asked, autocast = [], torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, dtype: asked.append((kind, dtype)) or autocast("cpu", dtype))
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator, requires_grad=True) for size in ((6, 5), (4, 5)))
    bias = torch.full((4,), 0.0)
    forms = [
        lambda: torch.nn.functional.linear(x, weight, bias), lambda: x @ weight.T, lambda: torch.matmul(x, weight.T),
        lambda: torch.bmm(x[None], weight.T[None])[0], lambda: x.mm(weight.t()),
        lambda: torch.einsum("bi,oi->bo", x, weight),
    ]  # fmt: skip
    halves = [each.detach().bfloat16() for each in (x, weight)]
    wanted = (halves[0].double() @ halves[1].double().T).numpy()
    for form in forms:
        asked.clear()
        with products_on(GPU, "bfloat16") as mode:
            assert isinstance(mode, RoundedProducts)
            found = form()
            assert found.dtype == torch.float32 and torch.exp(found).dtype == torch.float32
            gradients = torch.autograd.grad(found.sum(), (x, weight))
        assert asked == [("cuda", torch.bfloat16)]
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=2**-8)
        assert (found != x @ weight.T).any()
        ones = torch.ones(6, 4, dtype=torch.float64)
        np.testing.assert_allclose(gradients[0].numpy(), ones @ halves[1].double(), rtol=2**-7, atol=2**-7)
        np.testing.assert_allclose(gradients[1].numpy(), ones.T @ halves[0].double(), rtol=2**-7, atol=2**-7)
        assert all(each.dtype == torch.float32 for each in gradients)
    asked.clear()
    with products_on(GPU, "bfloat16"):
        assert (x * (1 + 2**-10)).sum() == (x * (1 + 2**-10)).sum() and not asked
        assert (x.double() @ weight.double().T).dtype == torch.float64
    assert device_products.products_on(CPU, "bfloat16") is not mode
