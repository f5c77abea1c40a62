"""TorchRec's DLRM on Criteo's clicks (Naumov et al., arXiv 1906.00091), with a loader of torchdata's, which knows where
it is.
"""

import sys

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.models.dlrm import DLRM

import marius_oac.torch as mt
from examples.own_loops import data

NAMES = [f"C{number}" for number in range(1, 27)]


def collate(examples):
    """Each feature has a bag of one key."""
    numbers, keys, labels = (torch.stack(column) for column in zip(*examples, strict=True))
    lengths = torch.ones(keys.numel(), dtype=torch.int32)
    return Batch(numbers, KeyedJaggedTensor.from_lengths_sync(NAMES, keys.T.flatten(), lengths), labels)


@torch.no_grad()
def quality(model, batch):
    model.eval()
    return data.auc(model(batch.dense_features, batch.sparse_features)[:, 0], batch.labels)


def main(folder, workers=0, epochs=2):
    torch.manual_seed(0)
    examples = TensorDataset(*data.criteo(folder))
    train, test = Subset(examples, range(8000)), Subset(examples, range(8000, 10_000))
    loader = StatefulDataLoader(train, 128, shuffle=True, num_workers=workers, collate_fn=collate)
    tables = [EmbeddingBagConfig(10_000, 16, f"t_{name}", feature_names=[name]) for name in NAMES]
    model = DLRM(mt.EmbeddingBagCollection(tables=tables), 13, [64, 16], [64, 1])
    model.over_arch = nn.Sequential(nn.Dropout(0.1), model.over_arch)
    rows = mt.Adagrad(model.sparse_arch, lr=0.02)
    networks = [model.dense_arch, model.inter_arch, model.over_arch]
    dense = torch.optim.Adam([each for network in networks for each in network.parameters()])
    keys = {"sparse_arch.embedding_bag_collection": "sparse_features"}
    with mt.Engine(model, keys, [rows, dense]) as engine:
        for _ in range(epochs):
            for batch in engine.batches(loader):
                logits = model(batch.dense_features, batch.sparse_features)[:, 0]
                nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
                rows.step()
                dense.step()
                rows.zero_grad()
                dense.zero_grad()
    return model, quality(model, collate(list(test)))


if __name__ == "__main__":
    print(f"AUC: {main(sys.argv[1])[1]:.3f}")
