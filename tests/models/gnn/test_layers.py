"""Layers and encoders against loops over the papers' formulas, and their gradients against finite differences."""

import os
import subprocess
import sys
from contextlib import closing, nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.encoder import EncoderConfig
from marius_oac.models.compute.products import PooledProducts
from marius_oac.models.gnn import segments
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.encoder import Encoder, make_encoder
from marius_oac.models.gnn.layers import GatLayer, Means, SageLayer
from marius_oac.runtime import blas
from marius_oac.runtime.thread_pool import ThreadPool
from tests.device import DEVICE
from tests.models import naive_gnn as naive
from tests.without_jit import only_with_the_jit, pass_without_the_jit

LAYERS = [
    {"kind": "sage", "dimension": 3},
    {"kind": "sage", "dimension": 2, "aggregator": "gcn"},
    {"kind": "gat", "dimension": 2, "heads": 1},
    {"kind": "gat", "dimension": 2, "heads": 3, "merge": "concat"},
    {"kind": "gat", "dimension": 3, "heads": 2, "merge": "mean", "attend_to_self": False},
]
INPUTS = 4


def tensors(block):
    offsets, sources, num_inputs = block
    return Block(torch.tensor(offsets), torch.tensor(sources, dtype=torch.int64), num_inputs)


def make(*layers, seed=0, dropout=0.0):
    """In float64, biases too being drawn."""
    encoder = make_encoder(EncoderConfig(layers=layers, dropout=dropout), INPUTS, seed).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.arange(1.0, parameter.numel() + 1).sin())
    return encoder


def draw_values(rows, seed=0, width=INPUTS):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, width)))


def expected_layer(layer, values, block):
    given = {name: parameter.tolist() for name, parameter in layer.named_parameters()}
    if isinstance(layer, SageLayer):
        own = given.get("own")
        return naive.sage(layer.aggregator, own, given["neighbours"], given["bias"], values, block)
    vectors = given["source"], given["destination"]
    return naive.gat(given["weight"], *vectors, given["bias"], layer.merge, layer.attend_to_self, values, block)


def expected(encoder, values, blocks):
    values = values.tolist()
    for number, (layer, block) in enumerate(zip(encoder.layers, blocks, strict=True)):
        if number:
            between = naive.elu if isinstance(encoder.layers[number - 1], GatLayer) else naive.relu
            values = [[between(x) for x in row] for row in values]
        values = expected_layer(layer, values, block)
    return values


blocks_of = st.builds(
    naive.draw_blocks,
    seed=st.integers(0, 1000),
    layers=st.just(1),
    outputs=st.integers(1, 6),
    extra_inputs=st.integers(0, 5),
    most_edges=st.integers(0, 5),
)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@settings(deadline=None, max_examples=30)
@given(blocks=blocks_of, seed=st.integers(0, 99))
def test_a_layer_is_its_formula(layer, blocks, seed):
    encoder, values = make(layer, seed=seed), draw_values(blocks[0][2], seed)
    wanted = expected(encoder, values, blocks)
    given = [tensors(block) for block in blocks]
    np.testing.assert_allclose(encoder(values, given).tolist(), wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(encoder.float()(values.float(), given).tolist(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stack", [(0, 1), (3, 2), (4, 0, 3)], ids=str)
def test_layers_follow_each_other_with_their_activations_between(stack):
    encoder = make(*(LAYERS[i] for i in stack))
    for seed in range(5):
        blocks = naive.draw_blocks(seed, len(stack), 3, 2, 4)
        values = draw_values(blocks[0][2], seed)
        found = encoder(values, [tensors(block) for block in blocks])
        assert found.shape == (3, encoder.width)
        np.testing.assert_allclose(found.tolist(), expected(encoder, values, blocks), rtol=1e-9, atol=1e-12)


def functional(encoder, blocks):
    """The encoder as a function of its parameters and values, and these."""
    names = [name for name, _ in encoder.named_parameters()]
    given = [tensors(block) for block in blocks]

    def f(*leaves):
        parameters = dict(zip(names, leaves[1:], strict=True))
        return torch.func.functional_call(encoder, parameters, (leaves[0], given))

    values = draw_values(blocks[0][2], width=INPUTS)
    return f, [each.detach().requires_grad_() for each in (values, *encoder.parameters())]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_gradients_are_those_of_finite_differences(layer):
    encoder = make({"kind": "gat", "dimension": 2, "heads": 2}, layer)
    for seed in range(3):
        f, leaves = functional(encoder, naive.draw_blocks(seed, 2, 3, 2, 3))
        assert torch.autograd.gradcheck(f, leaves)


def differentiated(encoder, values, blocks, thread_pool=None):
    """The result and the gradients by values and parameters of its sum weighted with sines."""
    leaf = values.detach().requires_grad_()
    encoder.zero_grad()
    result = encoder(leaf, blocks, thread_pool)
    (result * torch.arange(result.numel()).sin().to(result.dtype).view_as(result)).sum().backward()
    return [result.detach(), leaf.grad, *(parameter.grad.clone() for parameter in encoder.parameters())]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@settings(deadline=None, max_examples=20)
@given(blocks=blocks_of, seed=st.integers(0, 99))
def test_gradients_of_kernels_are_those_of_float64(layer, blocks, seed):
    encoder, values = make(layer, seed=seed), draw_values(blocks[0][2], seed)
    given = [tensors(block) for block in blocks]
    wanted = differentiated(encoder, values, given)
    found = differentiated(encoder.float(), values.float(), given)
    for mine, exact in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width, sources", [(0, [2, 1]), (3, [])])
def test_sums_of_no_floats_or_no_edges(width, sources):
    block = tensors(([0, len(sources) // 2, len(sources)], sources, 3))
    values = torch.ones(3, width, requires_grad=True)
    own, sums = segments.neighbours(values, block)
    assert torch.equal(own, torch.ones(2, width)) and torch.equal(sums, torch.zeros(2, width))
    (own + sums).sum().backward()
    assert torch.equal(values.grad, torch.ones(3, width) * torch.tensor([[1], [1], [0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_of_zero_has_the_slope_of_those_below(dtype):
    sources, destinations = torch.tensor([[0.0], [1.0]], dtype=dtype), torch.zeros(1, 1, dtype=dtype)
    weights = segments.attention(sources.requires_grad_(), destinations, 0.25, tensors(([0, 2], [0, 1], 2)))
    weights[0, 0].backward()
    passed = weights[0, 0].item() * weights[1, 0].item()
    np.testing.assert_allclose(sources.grad[:, 0], [0.25 * passed, -passed], rtol=1e-6)


def large_blocks():
    """Enough work for many tasks; source 0 has a large share of all edges."""
    generator, blocks, outputs = np.random.default_rng(0), [], 1500
    for _ in range(2):
        inputs = 2 * outputs
        offsets = np.concatenate(([0], np.cumsum(generator.integers(0, 20, outputs))))
        sources = (inputs * generator.random(offsets[-1]) ** 4).astype(np.int64)
        blocks.insert(0, Block(torch.from_numpy(offsets), torch.from_numpy(sources), inputs))
        outputs = inputs
    return blocks


STACKS = [
    ({"kind": "sage", "dimension": 33}, {"kind": "sage", "dimension": 7, "aggregator": "gcn"}),
    ({"kind": "gat", "dimension": 9, "heads": 3}, {"kind": "gat", "dimension": 8, "heads": 2}),
]


@pytest.mark.parametrize("stack", STACKS, ids=["sage", "gat"])
def test_same_bits_for_any_number_of_threads(stack):
    blocks = large_blocks()
    encoder, values = make(*stack).float(), draw_values(blocks[0].num_inputs).float()
    seen = []
    with blas.one_thread_per_product():
        for count, given in ((1, None), (1, "lanes"), (2, "lanes"), (3, "lanes"), (1, "products"), (2, "products")):
            with closing(ThreadPool(count)) as thread_pool:
                products = PooledProducts(thread_pool, None)
                shared = {"lanes": thread_pool, "products": products}.get(given)
                with nullcontext() if given == "products" else products:
                    fresh = [Block(block.offsets, block.sources, block.num_inputs) for block in blocks]
                    seen.append(differentiated(encoder, values, fresh, shared))
    assert all(torch.equal(one, other) for found in seen[1:] for one, other in zip(found, seen[0], strict=True))
    moved = values.clone()
    moved[0, 0] *= 1.001
    assert not torch.equal(encoder(moved, blocks), encoder(values, blocks))


@pytest.mark.parametrize("stack, runs", [(STACKS[0], 4), (STACKS[1], 12)], ids=["sage", "gat"])
def test_kernels_do_run_on_the_lanes(stack, runs):
    """GraphSAGE: sums and their gradient; GAT: attention and weighted sums, and their gradients by two things each."""

    class Counting(ThreadPool):
        runs = tasks = 0

        def run(self, tasks):
            self.runs += 1
            self.tasks += len(tasks)
            super().run(tasks)

    blocks, thread_pool = large_blocks(), Counting(1)
    encoder, values = make(*stack).float(), draw_values(blocks[0].num_inputs).float()
    differentiated(encoder, values, blocks, thread_pool)
    assert thread_pool.runs == runs
    edges = sum(block.num_edges for block in blocks)
    assert thread_pool.tasks >= 2 * edges / segments._BAG_WORK


def test_parameters_are_a_function_of_the_seed_and_leave_no_trace():
    config = EncoderConfig(layers=LAYERS)
    before = torch.random.get_rng_state()
    first, same, other = (make_encoder(config, INPUTS, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], same[key]) for key in first)
    matrices = [key for key in first if first[key].dim() > 1]
    assert len(matrices) == 12 and not any(torch.equal(first[key], other[key]) for key in matrices)
    assert not any(first[key].any() for key in first if key not in matrices)
    wide = make_encoder(EncoderConfig(layers=[{"kind": "sage", "dimension": 300}]), 100, 0).layers[0].own.detach()
    assert wide.abs().max() <= (12 / 400) ** 0.5 and wide.std() == pytest.approx((4 / 400) ** 0.5, rel=0.02)
    # What a seed means stays what it is.
    assert make_encoder(config, INPUTS, 0).layers[0].own[0, :2].tolist() == pytest.approx([-0.1949305, 0.8238121])


def test_heads_lie_side_by_side_and_become_their_mean_at_the_end():
    layers = [{"kind": "gat", "dimension": 5, "heads": 3}, {"kind": "gat", "dimension": 7, "heads": 2}]
    encoder = make_encoder(EncoderConfig(layers=layers), INPUTS, 0)
    assert [layer.width for layer in encoder.layers] == [15, 7] and encoder.width == 7


def test_dropout_is_drawn_while_training_alone():
    encoder = make({"kind": "sage", "dimension": 30}, dropout=0.5)
    blocks = [tensors(naive.draw_block(0, 5, 5, 3))]
    values = draw_values(blocks[0].num_inputs)
    with torch.random.fork_rng(devices=()):
        found = []
        for seed in (1, 1, 2):
            torch.default_generator.manual_seed(seed)
            found.append(encoder(values, blocks))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    encoder.eval()
    assert torch.equal(encoder(values, blocks), encoder(values, blocks))
    assert make({"kind": "sage", "dimension": 30}).train().dropout == 0.0


@pytest.mark.parametrize("aggregator", ["mean", "gcn"])
def test_a_first_layer_of_graphsage_may_be_given_its_means(aggregator):
    encoder = make({"kind": "sage", "dimension": 3, "aggregator": aggregator}, LAYERS[2])
    blocks = [
        Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1]), 3),
        Block(torch.tensor([0, 1]), torch.tensor([1]), 2),
    ]
    values = draw_values(3)
    if aggregator == "mean":
        given = Means(values[:2], torch.stack((values[1:].mean(0), torch.zeros(INPUTS))))
    else:
        given = Means(None, torch.stack((values.mean(0), values[1])))
    torch.testing.assert_close(encoder(given, blocks[1:]), encoder(values, blocks))
    with pytest.raises(ValueError, match="2 blocks for 1 layers"):
        encoder(given, blocks)
    other = "gcn" if aggregator == "mean" else "mean"
    for wrong in (make({"kind": "sage", "dimension": 3, "aggregator": other}), make(LAYERS[2])):
        with pytest.raises(ValueError, match="not what the first layer makes"):
            wrong(given, [])
    if aggregator == "mean":
        with pytest.raises(ValueError, match=r"means \(1, 4\) of nodes \(2, 4\)"):
            encoder(Means(given.own, given.means[:1]), blocks[1:])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_values_that_are_given_need_no_gradient(layer):
    encoder, block = make(layer).float(), tensors(naive.draw_block(3, 4, 4, 3))
    encoder(draw_values(block.num_inputs).float(), [block]).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_a_diverged_value_is_seen():
    block = Block(torch.tensor([0, 2, 3]), torch.tensor([2, 0, 1]), 3)
    values = torch.zeros(3, INPUTS)
    values[2] = torch.nan
    for layer in LAYERS:
        found = make(layer).float()(values, [block])
        assert found[0].isnan().all() and found[1].isfinite().all()


def test_blocks_that_do_not_fit_are_refused():
    whole = torch.tensor([0, 1, 2])
    block = Block(whole, torch.tensor([0, 2]), 3)
    for offsets, sources, inputs, message in [
        (whole, torch.tensor([0, 3]), 3, "sources must be 0 to 2"),
        (whole, torch.tensor([0, -1]), 3, "sources must be 0 to 2"),
        (whole, torch.tensor([0, 1, 1]), 3, "offsets must ascend from 0 to the 3 edges"),
        (torch.tensor([0, 2, 1, 2]), torch.tensor([0, 1]), 3, "offsets must ascend"),
        (torch.tensor([1, 2]), torch.tensor([0, 1]), 3, "offsets must ascend"),
        (whole, torch.tensor([0, 0]), 1, "2 outputs of 1 inputs"),
        (whole.int(), torch.tensor([0, 0]), 3, "offsets must be int64 in one piece, not torch.int32"),
        (whole, torch.zeros(4, dtype=torch.int64)[::2], 3, "sources must be int64 in one piece"),
    ]:
        with pytest.raises(ValueError, match=message):
            Block(offsets, sources, inputs)
    encoder = make(LAYERS[0], LAYERS[2])
    with pytest.raises(ValueError, match="1 blocks for 2 layers"):
        encoder(draw_values(3), [block])
    with pytest.raises(ValueError, match="block 1 has 3 inputs, but there are 2"):
        encoder(draw_values(3), [block, block])


def test_any_module_of_the_contract_is_a_layer():
    class Last(torch.nn.Module):
        width = INPUTS
        activation = staticmethod(torch.sigmoid)

        def forward(self, values, block, thread_pool):
            return values[: block.num_outputs]

    blocks = [tensors(naive.draw_block(seed, *shape, 2)) for seed, shape in ((0, (4, 2)), (1, (1, 3)))]
    values = draw_values(6)
    assert torch.equal(Encoder([Last(), Last()])(values, blocks), torch.sigmoid(values[:4])[:1])


@pytest.mark.slow
@only_with_the_jit
def test_without_the_compiler():
    pass_without_the_jit(__file__, "-k", "formula or kernels_are or follow_each_other or diverged")


DIGESTS = """
from tests.models.gnn.test_layers import *
blocks = large_blocks()
for stack in STACKS:
    encoder, values = make(*stack).float(), draw_values(blocks[0].num_inputs).float()
    for tensor in differentiated(encoder, values, blocks):
        print(hash(tensor.numpy().tobytes()))
"""


@pytest.mark.slow
def test_kernels_just_compiled_have_the_bits_of_cached_ones(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": "0"}
    outputs = [
        subprocess.check_output([sys.executable, "-c", DIGESTS], env=environment, text=True, timeout=300)
        for _ in range(2)
    ]
    assert outputs[0].count("\n") == 17 and outputs[0] == outputs[1]


@pytest.mark.device
@pytest.mark.parametrize("stack", STACKS, ids=["sage", "gat"])
def test_a_device_repeats_its_bits_and_follows_the_cpu(stack):
    blocks = large_blocks()
    encoder, values = make(*stack), draw_values(blocks[0].num_inputs)
    wanted = differentiated(encoder, values, blocks)
    encoder, values = encoder.float().to(DEVICE), values.float().to(DEVICE)
    seen = [
        differentiated(
            encoder,
            values,
            [Block(block.offsets.to(DEVICE), block.sources.to(DEVICE), block.num_inputs) for block in blocks],
        )
        for _ in range(2)
    ]
    for one, two, cpu in zip(*seen, wanted, strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one.cpu().double(), cpu, rtol=1e-3, atol=1e-3)
