"""Names of a click model's rows without texts, against a loop over Python's integers."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.tasks.ctr import trained
from marius_oac.tasks.ctr.names import KeyTexts
from marius_oac.tasks.ctr.trained import _key_names

VOCABULARIES = ["user", "itém", "x=y"]
EDGES = [0, -1, 1, -(2**63), 2**63 - 1, 10, 255]


def naive(number, key, check):
    return f"{VOCABULARIES[number]}={key % 2**64:016x}" if check else f"{VOCABULARIES[number]}={key}"


@pytest.mark.parametrize("texts", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_names_are_vocabulary_and_key(count, texts):
    rng = np.random.default_rng(count)
    keys = np.concatenate([EDGES, rng.integers(-(2**63), 2**63 - 1, 200)])[:count]
    numbers = rng.integers(0, 3, count).astype(np.uint16)
    checks = np.where(rng.random(count) < texts, 2**32 - 1, 0).astype(np.uint32)
    expected = [naive(*row) for row in zip(numbers.tolist(), keys.tolist(), checks.tolist(), strict=True)]
    assert _key_names(VOCABULARIES, numbers, keys, checks, KeyTexts.read(Path("no run"))) == expected


def test_rows_from_anywhere_have_their_own_names(monkeypatch):
    arrays = {
        "t.index.keys": np.arange(5),
        "t.index.vocabularies": np.array([0, 1, 2, 0, 1], np.uint16),
        "t.index.checks": np.array([0, 7, 0, 7, 0], np.uint32),
    }
    checkpoint = SimpleNamespace(arrays=lambda: arrays, array=lambda *_: range(5), tables=lambda: ["t"])
    monkeypatch.setattr(trained, "vocabulary_names", lambda config: VOCABULARIES)
    names = trained.key_names(None, checkpoint, Path("no run"))["t"]
    assert names(np.array([3, 0, 1])) == [naive(0, 3, 7), naive(0, 0, 0), naive(1, 1, 7)]
