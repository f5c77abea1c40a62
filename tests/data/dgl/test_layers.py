"""The bridge to dgl, and our layers against dgl's on the same weights and blocks. Most of it needs dgl."""

import builtins
import platform
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac import dgl as bridge
from marius_oac.data.dgl.sampling import DglSampler
from marius_oac.errors import InputError
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.encoder import Encoder
from marius_oac.models.gnn.layers import GatLayer, SageLayer
from tests.models import naive_gnn as naive
from tests.models.gnn.test_layers import draw_values, tensors

INPUTS, OUTPUTS, HEADS = 6, 5, 3
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="session")
def dgl():
    try:
        module = bridge.load()
        import dgl.nn  # noqa: F401
    except InputError as error:
        pytest.skip(str(error))
    return module


def copied(parameters):
    """Pairs (ours, dgl's): dgl's take our values."""
    with torch.no_grad():
        for mine, theirs in parameters:
            theirs.copy_(mine.view_as(theirs))


def sage_pair(dgl, inputs, outputs, aggregator):
    ours, theirs = SageLayer(inputs, outputs, aggregator), dgl.nn.SAGEConv(inputs, outputs, aggregator)
    pairs = [(ours.neighbours, theirs.fc_neigh.weight)]
    if aggregator == "gcn":
        pairs.append((ours.bias, theirs.bias))
    else:
        pairs += [(ours.own, theirs.fc_self.weight), (ours.bias, theirs.fc_self.bias)]
    return ours, theirs, pairs


def gat_pair(dgl, inputs, outputs, heads):
    ours = GatLayer(inputs, outputs, heads, "concat", attend_to_self=False)
    theirs = dgl.nn.GATConv(inputs, outputs, heads, allow_zero_in_degree=True)
    pairs = [
        (ours.weight, theirs.fc.weight),
        (ours.source, theirs.attn_l),
        (ours.destination, theirs.attn_r),
        (ours.bias, theirs.bias),
    ]
    return ours, theirs, pairs


def compare(ours, theirs, pairs, block, values, graph=None):
    """Forward, and gradients by values and parameters, of the result's sum weighted with sines."""
    generator = torch.Generator().manual_seed(0)
    for mine, _ in pairs:
        mine.data = torch.randn(mine.shape, generator=generator) / 2
    copied(pairs)
    found = []
    for run in (
        lambda leaf: ours(leaf, block),
        lambda leaf: theirs(bridge.to_dgl(block) if graph is None else graph, leaf).flatten(1),
    ):
        leaf = values.float().detach().requires_grad_()
        result = run(leaf)
        (result * torch.arange(result.numel()).sin().view_as(result)).sum().backward()
        found.append((result.detach(), leaf.grad))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, **TOLERANCE)
    for mine, other in pairs:
        torch.testing.assert_close(mine.grad, other.grad.view_as(mine), **TOLERANCE)


block_of = st.builds(
    naive.draw_block,
    seed=st.integers(0, 1000),
    outputs=st.integers(1, 8),
    extra_inputs=st.integers(0, 9),
    most_edges=st.integers(1, 6),
)


@pytest.mark.parametrize(
    "pair, inputs, outputs, kind",
    [
        (sage_pair, 6, 5, "mean"),  # here dgl multiplies before the sum
        (sage_pair, 3, 8, "mean"),  # and here after it
        (sage_pair, 6, 5, "gcn"),
        (sage_pair, 3, 8, "gcn"),
        (gat_pair, INPUTS, OUTPUTS, 1),
        (gat_pair, INPUTS, OUTPUTS, HEADS),
    ],
)
def test_a_layer_is_dgls(dgl, pair, inputs, outputs, kind):
    @settings(deadline=None, max_examples=25)
    @given(block=block_of, seed=st.integers(0, 99))
    def check(block, seed):
        block = tensors(block)
        compare(*pair(dgl, inputs, outputs, kind), block, draw_values(block.num_inputs, seed, inputs))

    check()


def test_attending_to_itself_is_dgls_edge_from_every_node_to_itself(dgl):
    block = tensors(naive.draw_block(5, 6, 4, 5))
    ours, theirs, pairs = gat_pair(dgl, INPUTS, OUTPUTS, HEADS)
    ours.attend_to_self = True
    own = torch.arange(block.num_outputs)
    edges = torch.cat((block.sources, own)), torch.cat((block.destinations, own))
    graph = dgl.create_block(edges, num_src_nodes=block.num_inputs, num_dst_nodes=block.num_outputs)
    compare(ours, theirs, pairs, block, draw_values(block.num_inputs, 0, INPUTS), graph)


def test_on_a_sampled_graph_of_two_layers(dgl):
    """Ours and dgl's whole encoders on what dgl's sampler drew."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(300, (3000, 2), generator=generator).numpy()
    seeds = torch.randperm(300, generator=generator)[:40].numpy()
    (outer, inner), nodes, _ = DglSampler(edges, 300, 0, "in", [5, 4], seed=7).sample(seeds, 0, 0)
    sizes = (len(nodes), len(outer.offsets) - 1)
    blocks = [Block(*map(torch.from_numpy, each[:2]), size) for each, size in zip((outer, inner), sizes, strict=True)]
    first, second = sage_pair(dgl, INPUTS, 8, "mean"), gat_pair(dgl, 8, OUTPUTS, HEADS)
    pairs = first[2] + second[2]
    for mine, _ in pairs:
        mine.data = torch.randn(mine.shape, generator=generator) / 2
    copied(pairs)
    theirs = Encoder([bridge.DglLayer(first[1], INPUTS), bridge.DglLayer(second[1], 8, merge="concat")])
    ours = Encoder([first[0], second[0]])
    assert theirs.width == ours.width == HEADS * OUTPUTS
    values, found = draw_values(len(nodes), 2, INPUTS).float(), []
    for encoder in (ours, theirs):
        leaf = values.clone().requires_grad_()
        result = encoder(leaf, blocks)
        result.square().sum().backward()
        found += [(result.detach(), leaf.grad / leaf.grad.abs().max())]
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, **TOLERANCE)


def test_blocks_go_to_dgl_and_come_back(dgl):
    for seed in range(5):
        block = tensors(naive.draw_block(seed, 5, 3, 4))
        there = bridge.to_dgl(block)
        assert (there.num_src_nodes(), there.num_dst_nodes()) == (block.num_inputs, block.num_outputs)
        back = bridge.from_dgl(there)
        assert torch.equal(back.offsets, block.offsets) and torch.equal(back.sources, block.sources)
        assert back.num_inputs == block.num_inputs


def test_what_a_module_gives_must_fit_to_merge(dgl):
    gat = dgl.nn.GATConv(INPUTS, OUTPUTS, HEADS, allow_zero_in_degree=True)
    assert [bridge.DglLayer(gat, INPUTS, merge=merge).width for merge in ("concat", "mean")] == [15, 5]
    with pytest.raises(ValueError, match=r"gives \(1, 3, 5\), which does not fit to merge=None"):
        bridge.DglLayer(gat, INPUTS)
    with pytest.raises(ValueError, match=r"gives \(1, 5\), which does not fit to merge='mean'"):
        bridge.DglLayer(dgl.nn.SAGEConv(INPUTS, OUTPUTS, "mean"), INPUTS, merge="mean")


def test_without_dgl_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    block = Block(torch.tensor([0, 1]), torch.tensor([0]), 1)
    why = f"it has no wheels for Python 3.12 and newer, and this is {platform.python_version()}; with 3.11: pip install"
    with pytest.raises(InputError, match=rf"^dgl: can't be imported \(.*\); {why} '/path"):
        bridge.to_dgl(block)


def test_the_package_imports_dgl_nowhere_else(monkeypatch):
    """Importing the bridge alone does not import dgl."""
    real = builtins.__import__

    def refusing(name, *rest):
        assert name.partition(".")[0] != "dgl"
        return real(name, *rest)

    for name in ("marius_oac.dgl", "marius_oac.data.dgl.library"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refusing)
    import marius_oac.dgl  # noqa: F401
