"""Layers from a user's file: what they must be, and that their parameters are a function of seed and place alone."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from marius_oac.config.encoder import EncoderConfig, SageConfig
from marius_oac.errors import ConfigError, InputError
from marius_oac.models.gnn.encoder import load_layer, make_encoder
from tests.data.dgl.test_layers import dgl  # noqa: F401 - a fixture
from tests.models import naive_gnn as naive
from tests.models.gnn.test_layers import draw_values, tensors

pytestmark = pytest.mark.usefixtures("all_code_is_known")
EXAMPLE = Path(__file__).parents[3] / "examples" / "my_layers.py"
GOOD = """
import torch
class Layer(torch.nn.Module):
    activation = staticmethod(torch.relu)
    def __init__(self, inputs):
        super().__init__()
        self.width, self.inputs, self.norm = 3, inputs, torch.nn.BatchNorm1d(3)
        self.weight = torch.nn.Linear(inputs, 3)
    def forward(self, values, block, lanes):
        return self.norm(self.weight(values[:block.num_outputs]))
"""


def of(*layers):
    """An encoder's configuration; names stand for layers of own modules."""
    kinds = [SimpleNamespace(kind="module", module=each) if isinstance(each, str) else each for each in layers]
    return EncoderConfig.model_construct(layers=tuple(kinds), dropout=0.0)


def test_a_layer_is_made_for_its_inputs_and_left_as_it_was(tmp_path):
    (tmp_path / "mine.py").write_text(GOOD)
    layer = load_layer(f"{tmp_path}/mine.py:Layer", 4)
    assert (layer.inputs, layer.width, layer.training) == (4, 3, True)
    assert layer.norm.num_batches_tracked == 0


def test_parameters_are_a_function_of_seed_and_place(tmp_path):
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "drawing.py").write_text(GOOD.replace("import torch\n", "import torch\ntorch.rand(7)\n"))
    mine, drawing = f"{tmp_path}/mine.py:Layer", f"{tmp_path}/drawing.py:Layer"
    sage = SageConfig(kind="sage", dimension=3)

    def weights(config, seed):
        torch.rand(3)
        before = torch.random.get_rng_state()
        encoder = make_encoder(config, 3, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        return [layer.weight.weight for layer in encoder.layers if hasattr(layer, "weight")]

    first, second = weights(of(mine, mine), 1)
    assert not torch.equal(first, second)
    assert torch.equal(weights(of(sage, mine), 1)[0], second)
    assert torch.equal(weights(of(drawing, mine), 1)[1], second)
    assert not torch.equal(weights(of(mine, mine), 2)[0], first)


@pytest.mark.parametrize("text, message", [
    (GOOD.replace("Layer", "Other"), "mine.py has no function or class 'Layer'"),
    ("Layer = 7", "mine.py has no function or class 'Layer'"),
    ("def Layer(:", "mine.py:1: invalid syntax"),
    ("\nimport no_such_module_anywhere", "mine.py:2: ModuleNotFoundError: No module named"),
    ("def Layer(inputs):\n    return 1 / 0", "mine.py:2: ZeroDivisionError: division by zero"),
    ("def Layer():\n    return 1", "mine.py: TypeError: .* takes 0 positional arguments"),
    ("def Layer(inputs):\n    return 1", r"mine.py: Layer\(4\) gives a int, not an nn.Module"),
    (GOOD.replace("self.width,", "self.hidden,"), r"gives a layer whose `width` is None"),
    (GOOD.replace("self.width, self.inputs, self.norm = 3", "self.width, self.inputs, self.norm = 0"), "`width` is 0"),
    (GOOD.replace("    activation =", "    other ="), "gives a layer without `activation`, a function such as"),
    (GOOD.replace("values[:block.num_outputs]", "values"),
     r"makes \(2, 3\) of one node where `width` says \(1, 3\)"),
    (GOOD.replace("block, lanes", "block"), r"mine.py: TypeError: .*forward\(\) takes 3 positional"),
    (GOOD.replace("values[:block.num_outputs]", "1 + values[None]['a']"), "mine.py:10: "),
])  # fmt: skip
def test_what_is_no_layer_is_named(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        make_encoder(of(f"{tmp_path}/mine.py:Layer"), 4, 0)
    assert str(error.value).startswith("encoder.layers.0.module: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("name, message", [
    ("nothing.py:Layer", "there is no file nothing.py"),
    ("nothing", "must be FILE.py:NAME, not 'nothing'"),
])  # fmt: skip
def test_names_that_are_none(name, message):
    with pytest.raises(ConfigError, match=message):
        load_layer(name, 4)


def check_trains(config, block):
    """All parameters of the encoder have a gradient on two blocks that fit."""
    encoder = make_encoder(config, 6, 0)
    values = draw_values(block.num_inputs, 0, 6).float().requires_grad_()
    result = encoder(values, [block])
    assert result.shape == (block.num_outputs, encoder.width)
    result.square().sum().backward()
    assert values.grad.any() and all(each.grad is not None for each in encoder.parameters())


def test_the_example_in_plain_torch():
    check_trains(of(f"{EXAMPLE}:Isomorphism"), tensors(naive.draw_block(1, 5, 4, 6)))


def test_the_example_of_dgl(dgl):  # noqa: F811
    check_trains(of(f"{EXAMPLE}:attention"), tensors(naive.draw_block(1, 5, 4, 6)))


def test_the_example_of_dgl_without_dgl(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(InputError, match="^dgl: can't be imported"):
        load_layer(f"{EXAMPLE}:attention", 6)
