"""The base class of networks, the built-in ones by name, and custom ones.

A custom network is a subclass of `Network` in a file of yours: `model.network: my_model.py:MyNetwork`. The class only
defines how logits are computed from a batch's `Inputs`. Rows, their optimizer, batches and checkpoints are handled
elsewhere.
"""

from __future__ import annotations

import importlib

from torch import Tensor, nn

from marius_oac.config.ctr import NetworkConfig
from marius_oac.config.parts import own_file
from marius_oac.errors import ConfigError
from marius_oac.models.compute.torch_state import seeded_by
from marius_oac.models.compute.user_code import load_own
from marius_oac.models.ctr.schema import Inputs, Schema

KEY = "model.network"
NETWORKS = {
    "lr": "lr:LogisticRegression",
    "fm": "fm:FactorizationMachine",
    "deepfm": "deepfm:DeepFM",
    "dlrm": "dlrm:DLRM",
    "dcnv2": "dcnv2:DCNv2",
    "dien": "dien:DIEN",
    "youtubednn": "youtubednn:YouTubeDNN",
}


class Network(nn.Module):
    """A model of clicks over embeddings, which are not its parameters.

    Subclasses take `(schema, config)` and define `forward`. Parameters may be initialised as torch does: the global
    generator is seeded for the constructor, and restored afterwards.

    Attributes:
        first_order: rows have one more float, and `Inputs.first_order` is given.
        embeddings: False if rows are only first-order weights.
        takes_sequences: False if the network ignores sequences; a schema with sequences is refused then.
        auxiliary_loss: a loss that `forward` may set in training, a float of no dimensions: it is added to the batch's.
    """

    first_order: bool = False
    embeddings: bool = True
    takes_sequences: bool = False
    auxiliary_loss: Tensor | None = None

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__()
        self.schema = schema
        if schema.sequences and not self.takes_sequences:
            raise ConfigError(
                f"'{config.network}' makes nothing of sequences such as '{schema.sequences[0].name}'; list them under "
                "data.ignored, or as data.multi_valued",
                KEY,
            )

    def forward(self, inputs: Inputs) -> Tensor:
        """The logits of a click, float32 [B]."""
        raise TypeError(f"{type(self).__name__} has no forward")


def equal_dimension(schema: Schema, config: NetworkConfig) -> int:
    """The dimension of all fields. Raises ConfigError if fields differ, or there is no field."""
    dimensions = {field.dimension for field in schema.fields}
    if len(dimensions) != 1:
        found = ", ".join(map(str, sorted(dimensions))) or "none"
        raise ConfigError(f"'{config.network}' needs fields of one dimension, not {found}", KEY)
    return dimensions.pop()


def make_network(schema: Schema, config: NetworkConfig, seed: int) -> Network:
    """The network of a configuration. Its parameters are a function of schema, configuration and seed.

    Raises:
        ConfigError: there is no such network, or it doesn't support these features.
    """
    cls = network_class(config.network)
    with seeded_by(seed):
        return cls(schema, config)


def network_class(name: str) -> type[Network]:
    """The class of a built-in network, or of `FILE.py:CLASS`. Raises ConfigError if there is none."""
    if name in NETWORKS:
        module, _, attribute = NETWORKS[name].partition(":")
        return getattr(importlib.import_module(f"marius_oac.models.ctr.networks.{module}"), attribute)
    own = own_file(name)
    if own is None:
        raise ConfigError(f"there is no network {name!r}; known: {', '.join(NETWORKS)}, or FILE.py:CLASS", KEY)
    path, attribute = own
    found = load_own(path, attribute, KEY)
    if not (isinstance(found, type) and issubclass(found, Network)):
        raise ConfigError(f"{path} has no class {attribute!r} derived from marius_oac.Network", KEY)
    if found.forward is Network.forward:
        raise ConfigError(f"{path}: class {attribute!r} has no forward", KEY)
    return found
