"""Ways to ask torch for less than float32, each in a process of its own, as torch can't make its defaults again.

python -m tests.models.torch_settings    # says nothing where `products_on` is as it should be after each of them
"""

import os
import sys
import warnings

import torch

from marius_oac.models.compute.device_products import products_on

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
EVERY = ("generic", "all"), ("cuda", "all"), ("mkldnn", "all")
OPERATORS = [(backend, name) for backend in ("cuda", "mkldnn") for name in ("matmul", "conv", "rnn")]
get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


def settings(backend="cuda"):
    return tuple(get(backend, name) for name in ("matmul", "conv", "rnn"))


def older():
    """What torch's older functions say; None: they raise."""

    def asked(ask):
        try:
            return ask()
        except RuntimeError:
            return None

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    asks = torch.get_float32_matmul_precision, lambda: matmul.allow_tf32, lambda: cudnn.allow_tf32
    return tuple(map(asked, asks))


def following():
    """Which settings follow a more general one: those that its change changes."""
    found = set()
    for general in EVERY:
        before = {each: get(*each) for each in (*EVERY, *OPERATORS)}
        own = before[general] if general == EVERY[0] or not _follows(general) else "none"
        for other in ("ieee", "tf32"):
            put(*general, other)
            found |= {(general, each) for each in before if each != general and get(*each) != before[each]}
        put(*general, own)
    return found


def _follows(setting):
    general, value = get("generic", "all"), get(*setting)
    put("generic", "all", "ieee" if value == "tf32" else "tf32")
    follows = get(*setting) != value
    put("generic", "all", general)
    return follows


def high():
    torch.set_float32_matmul_precision("high")


def medium():
    torch.set_float32_matmul_precision("medium")


def allowed():
    torch.backends.cuda.matmul.allow_tf32 = True


def cudnn_forbidden():
    torch.backends.cudnn.allow_tf32 = False


def everything():
    torch.backends.fp32_precision = "tf32"


def all_of_cuda():
    torch.backends.cudnn.fp32_precision = "tf32"


def products():
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def recurrent():
    torch.backends.cudnn.rnn.fp32_precision = "ieee"


def both():
    allowed()
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def nothing():
    pass


WAYS = [nothing, high, medium, allowed, cudnn_forbidden, everything, all_of_cuda, products, recurrent, both]


def check_way(way):
    """Raises AssertionError where a setting isn't what it should be within a block, or afterwards."""
    way()
    before = settings(), settings("mkldnn"), older(), following()
    for precision, inside in (("float32", "ieee"), ("tf32", "tf32"), ("bfloat16", "ieee")):
        with products_on(GPU, precision):
            same = {"ieee", "none"} if inside == "ieee" else {"tf32"}
            assert set(settings()) <= same, (way.__name__, precision)
            assert set(settings("mkldnn")) <= {"ieee", "none"}
            if before[2][0] is not None and before[2][1] is not None:
                assert older()[0] is not None and older()[1] == (inside == "tf32")
        assert (settings(), settings("mkldnn"), older(), following()) == before, (way.__name__, precision)
    with products_on(CPU, "float32"):
        assert set(settings("mkldnn")) <= {"ieee", "none"}
    assert (settings(), settings("mkldnn"), older(), following()) == before, way.__name__


def main():
    warnings.simplefilter("error", UserWarning)
    failed = False
    for way in WAYS:
        child = os.fork()
        if not child:
            check_way(way)
            os._exit(0)
        failed |= os.waitpid(child, 0)[1] != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
