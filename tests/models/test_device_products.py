"""What `compute.precision` asks of torch on a GPU, whatever was asked before. Settings need no GPU."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from marius_oac.models.compute.device_products import RoundedProducts, products_on
from tests.models.torch_settings import settings

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def check_all_ways(**variables):
    command = [sys.executable, "-m", "tests.models.torch_settings"]
    done = subprocess.run(command, env=os.environ | variables, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.usefixtures("forked_programs")
def test_whatever_was_set_before_products_are_as_asked_and_it_is_restored():
    check_all_ways()


@pytest.mark.usefixtures("started_anew")
def test_also_where_a_variable_of_an_image_allows_tf32():
    check_all_ways(TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")


@pytest.fixture
def tf32_everywhere():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"


def test_an_error_restores_them(tf32_everywhere):
    before = settings()
    with pytest.raises(ZeroDivisionError), products_on(GPU, "float32"):
        raise ZeroDivisionError
    assert settings() == before and before[0] == "tf32"


def test_the_last_thread_restores_them(tf32_everywhere):
    """The second one enters before the first leaves, and leaves after it."""
    entered, left, seen = threading.Event(), threading.Event(), []

    def second():
        with products_on(GPU, "float32"):
            entered.set()
            left.wait()
            seen.append(settings()[0])

    thread = threading.Thread(target=second)
    with products_on(GPU, "float32"):
        thread.start()
        entered.wait()
    left.set()
    thread.join()
    assert seen == ["ieee"] and settings()[0] == "tf32"


def test_two_precisions_at_a_time_are_refused():
    with products_on(GPU, "float32"):
        with pytest.raises(RuntimeError, match="products in ieee and in tf32 at a time"), products_on(GPU, "tf32"):
            pass
        with products_on(GPU, "bfloat16"), products_on(CPU, "bfloat16"):
            assert settings() == ("ieee",) * 3
    with products_on(GPU, "tf32"):
        assert settings() == ("tf32",) * 3


def test_on_a_cpu_nothing_is_rounded():
    for precision in ("float32", "tf32", "bfloat16"):
        with products_on(CPU, precision) as mode:
            assert mode is None
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
