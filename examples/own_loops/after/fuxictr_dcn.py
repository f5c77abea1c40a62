"""A model class of FuxiCTR's: DCNv2 (Wang et al., WWW 2021), trained by its base class's step."""

import sys

import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import CrossNetV2, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from torch import nn

import marius_oac.torch as mt
from examples.own_loops import data

COLUMNS = ("user", "item", "daytime", "weekday", "weekend", "homework", "cost", "weather", "country", "city")


class DCNv2(BaseModel):
    def __init__(self, feature_map, embedding_dim=10, units=(128, 64), dropout=0.2, lr=1e-3, **given):
        super().__init__(feature_map, model_id="DCNv2", **given)
        self.embedding_layer = FeatureEmbedding(feature_map, embedding_dim)
        width = len(feature_map.features) * embedding_dim
        self.crossnet = CrossNetV2(width, 2)
        self.dnn = MLP_Block(width, hidden_units=list(units), dropout_rates=dropout, batch_norm=True)
        self.fc = nn.Linear(width + units[-1], 1)
        self.compile("adam", "binary_crossentropy", lr)
        self.reset_parameters()

    def forward(self, inputs):
        x = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        return {"y_pred": self.output_activation(self.fc(torch.cat([self.crossnet(x), self.dnn(x)], -1)))}


def features():
    """The columns, as FuxiCTR's preprocessing describes them."""
    found = FeatureMap("frappe", "")
    found.labels = ["label"]
    for name in COLUMNS:
        found.features[name] = {"type": "categorical", "source": "", "vocab_size": data.FRAPPE}
    return found


class Named:
    """A loader whose batches are dictionaries, as FuxiCTR's are."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for keys, label in self.loader:
            yield {**dict(zip(COLUMNS, keys.T.contiguous(), strict=True)), "label": label}


def main(folder, workers=0, epochs=1):
    torch.manual_seed(0)
    loader = Named(data.loader(data.frappe(folder, "train"), 1024, workers))
    test = Named(data.loader(data.frappe(folder, "test"), 4096))
    model = DCNv2(features(), model_root="", metrics=["AUC"], verbose=0)
    model._max_gradient_norm = 10.0  # as `fit` does, which needs an older NumPy
    mt.convert(model)
    model.compile("adam", "binary_crossentropy", lr=1e-3)
    rows = mt.Adam(model, lr=1e-3)
    model.optimizer.register_step_post_hook(lambda *_: (rows.step(), rows.zero_grad()))
    keys = {f"embedding_layer.embedding_layer.embedding_layers.{name}": name for name in COLUMNS}
    with mt.Engine(model, keys, [rows, model.optimizer]) as engine:
        for _ in range(epochs):
            model.train()
            for batch in engine.batches(loader):
                model.train_step(batch)
    return model, model.evaluate(test)["AUC"]


if __name__ == "__main__":
    print(f"AUC: {main(sys.argv[1])[1]:.4f}")
