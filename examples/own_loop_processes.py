"""The recommender of `own_loop.py` in two processes: `torchrun --nproc-per-node 2 examples/own_loop_processes.py`.

Each process draws batches of its own. The tables' rows are shared among the processes, and torch's
DistributedDataParallel averages the gradients of the network.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import marius_oac.torch as mt

sys.path.insert(0, os.path.dirname(__file__))
from own_loop import Recommender, loader


def main(batches=300):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    items, users = mt.EmbeddingBag(16), mt.Embedding(16, seed=1)
    model = Recommender(items, users)
    rows, dense = mt.Adagrad(model, lr=0.2), torch.optim.Adam(model.parameters())
    parallel = nn.parallel.DistributedDataParallel(model)
    keys = {items: "item", users: lambda batch: batch["user"]}
    with mt.Engine(model, keys=keys, optimizers=[rows, dense], group=dist.group.WORLD) as engine:
        for batch in engine.batches(loader(batches, seed=1 + dist.get_rank())):
            nn.functional.binary_cross_entropy_with_logits(parallel(batch), batch["liked"]).backward()
            rows.step()
            dense.step()
            rows.zero_grad()
            dense.zero_grad()
        model.eval()
        test = next(loader(1, seed=9))
        right = ((model(test) > 0) == test["liked"].bool()).float().mean().item()
    if dist.get_rank() == 0:
        print(f"{right:.0%} of the test batch is right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
