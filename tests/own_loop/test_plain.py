"""States of objects become plain data and tensors, and come back."""

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from marius_oac.errors import CheckpointError, InputError
from marius_oac.runtime.files.untrusted import parse_json
from marius_oac.torch.plain import from_plain, to_plain

STATES = [
    None, True, 3, -(2**63), 2**63 - 1, 2**63, -(2**70), "text", 0.1, math.inf, -math.inf, [1, [2.5, "a"]], (1, (2,)),
    {}, {"a": {1: [None]}}, {(1, "b"): 2}, {1, 2}, OrderedDict(b=1, a=2), Counter({4: 2}),
    defaultdict(dict, {3: {"step": 1}}),
]  # fmt: skip
TENSORS = [
    torch.arange(6.0).reshape(2, 3).t(), torch.tensor(3.0), torch.tensor([True]), torch.zeros(0, 4),
    torch.tensor([1.5, -2], dtype=torch.bfloat16), torch.tensor([[0.0, -math.inf]]),
    torch.tensor([1, 2], dtype=torch.int8),
]  # fmt: skip


def there_and_back(state):
    tensors = {}
    tree = parse_json(json.dumps(to_plain(state, "it", tensors)).encode(), "it", dict[str, Any])
    return from_plain(tree, load(save(tensors)))


@pytest.mark.parametrize("state", STATES, ids=repr)
def test_plain_states_come_back(state):
    found = there_and_back(state)
    assert found == state and type(found) is type(state)


def test_tensors_come_back_with_their_bits_and_share_nothing():
    state = {"all": TENSORS, "again": TENSORS[0], "all.0": np.arange(3, dtype=np.uint32), 0: torch.ones(1), "0": 1.0}
    found = there_and_back(state)
    for one, other in zip(
        (*found["all"], found["again"], found[0]), (*TENSORS, TENSORS[0], torch.ones(1)), strict=True
    ):
        assert one.dtype == other.dtype and torch.equal(one, other)
    assert found["all.0"].dtype == np.uint32 and found["all.0"].tolist() == [0, 1, 2]
    parameter = torch.nn.Parameter(torch.ones(2))
    kept = {}
    to_plain(parameter, "it", kept)
    parameter.data.zero_()
    assert kept["it"].tolist() == [1, 1]


def test_nan_comes_back():
    assert math.isnan(there_and_back(math.nan)) and torch.isnan(there_and_back(torch.tensor(math.nan)))


@pytest.mark.parametrize("state", [object(), print, [{"a": lambda: 1}], np.array(["a"]), torch.float32])
def test_other_things_are_refused(state):
    with pytest.raises(InputError, match="can't be saved: only numbers"):
        to_plain(state, "it", {})


@pytest.mark.parametrize(
    "tree", [3, {}, {"is": [1]}, {"is": 1, "float": "0x1"}, {"float": "x"}, {"tensor": "none"}, {"dict": [1]},
             {"integer": "0xg"}, {"integer": 3},
             {"spell": 1}, {"list": 3}, {"dict": [[{"list": []}, {"is": 1}]]},
             {"tensor's bytes": ["it", "float32", [7]]}, {"tensor's bytes": ["it", "load", [7]]}]
)  # fmt: skip
def test_damaged_trees_are_refused(tree):
    with pytest.raises(CheckpointError, match="has a damaged state"):
        from_plain(tree, {"it": torch.zeros(3, dtype=torch.uint8)})
