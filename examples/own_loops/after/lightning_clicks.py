"""A click model trained by Lightning, with manual optimization: tables and networks have optimizers of their own."""

import sys

import lightning as L
import torch
from torch import nn

import marius_oac.torch as mt
from examples.own_loops import data


class Clicks(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.table = mt.Embedding(16)
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(160, 128), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1),
        )  # fmt: skip
        self.rows = mt.Adam(self.table, lr=0.02)
        self.dense = torch.optim.Adam(self.network.parameters(), lr=0.002)

    def configure_optimizers(self):
        return self.rows, self.dense

    def training_step(self, batch, _):
        keys, clicked = batch
        logits = self.network(self.table(keys))[:, 0]
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicked)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        self.log("loss", loss)

    def predict_step(self, batch, _):
        return self.network(self.table(batch[0]))[:, 0]


def main(folder, workers=0):
    torch.manual_seed(0)
    loader = data.loader(data.frappe(folder, "train"), 1024, workers)
    keys, clicked = data.frappe(folder, "test")
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer, model = L.Trainer(accelerator="cpu", max_epochs=1, **quiet), Clicks()
    with mt.Engine(model, {"table": 0}, model.configure_optimizers()) as engine:
        trainer.fit(model, engine.batches(loader))
    model.eval()
    return model, data.auc(model.predict_step((keys, clicked), 0).detach(), clicked)


if __name__ == "__main__":
    print(f"AUC: {main(sys.argv[1])[1]:.4f}")
