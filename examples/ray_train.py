"""The recommender of `own_loop.py` under Ray Train: `python examples/ray_train.py /tmp/recommender`.

Each worker is a process of Ray's, with batches of its own. The tables' rows are shared among the workers. After one is
lost Ray starts all of them again, and they go on from the newest checkpoint. FOLDER must be one that all nodes share.
"""

import os
import sys

import ray.train
import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import marius_oac.torch as mt

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from own_loop import Recommender, loader


class Epochs:
    """How many are done, for checkpoints."""

    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def work(given):
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    items, users = mt.EmbeddingBag(16), mt.Embedding(16, seed=1)
    model = Recommender(items, users)
    rows, dense = mt.Adagrad(model, lr=0.2), torch.optim.Adam(model.parameters())
    parallel = prepare_model(model)  # DistributedDataParallel, of the network: tables' rows are no parameters
    keys = {items: "item", users: lambda batch: batch["user"]}
    epochs, saved = Epochs(), os.path.join(given["folder"], "checkpoints")
    with mt.Engine(model, keys=keys, optimizers=[rows, dense], stateful=[epochs], group=dist.group.WORLD) as engine:
        engine.load(saved)
        while epochs.done < given["epochs"]:
            total = 0.0
            for batch in engine.batches(loader(100, seed=100 * epochs.done + rank)):
                loss = nn.functional.binary_cross_entropy_with_logits(parallel(batch), batch["liked"])
                loss.backward()
                rows.step()
                dense.step()
                rows.zero_grad()
                dense.zero_grad()
                total += loss.item()
            epochs.done += 1
            engine.save(saved)
            ray.train.report({"epochs": epochs.done, "loss": total / 100})
            if rank == 0:
                print(f"epoch {epochs.done}: loss {total / 100:.3f}")


def main(folder, workers=2, epochs=3):
    trainer = TorchTrainer(
        work,
        train_loop_config={"folder": os.path.abspath(folder), "epochs": epochs},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=os.path.abspath(folder), failure_config=FailureConfig(max_failures=3)),
    )
    return trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1])
