"""Link prediction by PyG's message passing over sampled neighbourhoods of this package (GraphSAGE: Hamilton, Ying and
Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017).
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_geometric.nn import SAGEConv

import marius_oac.torch as mt
from examples.own_loops import data
from marius_oac.data.neighbors.neighbors import open_neighbors
from marius_oac.data.neighbors.sampling import NeighborSampler


class EdgeBatches(Dataset):
    """Batches of edges, each with as many other tails, and the neighbourhoods of all their nodes.

    Args:
        triples: int64 [n, 3], heads, relations and tails.
        sampler: of neighbours.
        nodes: of the graph.
        training: the edges are in the graph: a batch's own are left out of its neighbourhoods.
    """

    def __init__(self, triples, sampler, nodes, size=512, epochs=1, training=True):
        self.triples, self.sampler, self.nodes, self.size, self.training = triples, sampler, nodes, size, training
        self.in_epoch = -(-len(triples) // size)
        self.count = epochs * self.in_epoch

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        epoch, batch = divmod(number, self.in_epoch)
        order = np.random.default_rng(epoch).permutation(len(self.triples))
        edges = order[batch * self.size : (batch + 1) * self.size]
        head, relation, tail = self.triples[edges].T
        other = np.random.default_rng((epoch, batch)).integers(self.nodes, size=len(edges))
        ends, places = np.unique(np.stack([head, tail, other]), return_inverse=True)
        blocks = self.sampler.sample(ends, epoch, batch, *[edges] * self.training)
        layers = []
        for offsets, sources, *_ in blocks.layers:
            targets = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            layers.append({"edges": np.stack([sources, targets]), "targets": len(offsets) - 1})
        nodes = blocks.rows[blocks.inputs]
        return {"nodes": nodes, "layers": layers, "relation": relation, "ends": places.reshape(3, -1)}


class GraphSage(nn.Module):
    def __init__(self, nodes, relations):
        super().__init__()
        self.table = mt.Embedding(32)
        self.convolutions = nn.ModuleList(SAGEConv(32, 32) for _ in range(2))
        self.relation, self.dropout = nn.Embedding(relations, 32), nn.Dropout(0.2)

    def forward(self, batch):
        """Scores of the edges and of those with other tails (DistMult), float32 [2, n]."""
        x = self.table(batch["nodes"])
        for convolution, layer in zip(self.convolutions, batch["layers"], strict=True):
            x = x[: layer["targets"]] + convolution((self.dropout(x), x[: layer["targets"]]), layer["edges"]).relu()
        head, tails = x[batch["ends"][0]], x[batch["ends"][1:]]
        return (head * self.relation(batch["relation"]) * tails).sum(-1) / 8


@torch.no_grad()
def quality(model, loader):
    """AUC of edges against those with other tails."""
    model.eval()
    scores = torch.cat([model(batch) for batch in loader], 1)
    return data.auc(scores.flatten(), torch.tensor([[1.0], [0.0]]).expand_as(scores).flatten())


def main(folder="marius_oac/data/reading/embedded/codex-s", workers=0):
    torch.manual_seed(1)
    edges, valid = data.codex(folder, "train"), data.codex(folder, "valid")
    nodes, relations = int(edges[:, ::2].max()) + 1, int(edges[:, 1].max()) + 1
    with tempfile.TemporaryDirectory() as cache:
        ends = np.ascontiguousarray(edges[:, ::2])
        neighbors = open_neighbors(Path(cache) / "neighbors", ends, nodes, 0, "both", "codex-s")
        sampler = NeighborSampler(neighbors, (8, 4), seed=0)
    loader = DataLoader(EdgeBatches(edges, sampler, nodes, epochs=3), None, shuffle=True, num_workers=workers)
    model = GraphSage(nodes, relations)
    rows = mt.Adam(model.table, lr=0.02)
    dense = torch.optim.Adam([*model.convolutions.parameters(), *model.relation.parameters()], lr=0.01)
    with mt.Engine(model, {"table": "nodes"}, [rows, dense]) as engine:
        for batch in engine.batches(loader):
            edge, other = model(batch)
            loss = nn.functional.softplus(other - edge).mean()
            loss.backward()
            rows.step()
            dense.step()
            rows.zero_grad()
            dense.zero_grad()
    return model, quality(model, DataLoader(EdgeBatches(valid, sampler, nodes, training=False), None))


if __name__ == "__main__":
    print(f"AUC: {main(*sys.argv[1:])[1]:.3f}")
