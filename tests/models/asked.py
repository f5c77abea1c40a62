"""Which libraries are asked for products: bits don't tell, since those of small products are often the same."""

from collections import Counter

from marius_oac.models.compute import multiply


def counted(monkeypatch, least: int) -> Counter[str]:
    """Counts calls of torch's products, and among them those of oneDNN, which has all from `least` work on."""
    asked: Counter[str] = Counter()
    by_torch, onednn = multiply.by_torch, multiply._ONEDNN

    def product(*arrays):
        asked["torch"] += 1
        return by_torch(*arrays)

    def linear(*arguments):
        asked["onednn"] += 1
        return onednn(*arguments)

    monkeypatch.setitem(multiply._MULTIPLY, "torch", product)
    monkeypatch.setattr(multiply, "_LEAST_WORK", least)
    if onednn is not None:
        monkeypatch.setattr(multiply, "_ONEDNN", linear)
    return asked


def are_torchs(asked: Counter[str], least: int) -> bool:
    """Whether products were torch's, and oneDNN's if it had those of any size."""
    return asked["torch"] > 0 and (asked["onednn"] > 0) == (least == 0 and multiply._ONEDNN is not None)
