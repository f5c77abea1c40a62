"""Penalties on the rows of a batch's positive edges, in torch.

    penalty = weight / B * sum over the B edges of f(head) + f(tail) + f(relation)

f is sum |x|^2 (l2) or sum |x|^3 (n3: Lacroix et al., ICML 2018, equation 5, with p = 3). For ComplEx n3 uses the moduli
of the complex numbers, for other decoders absolute values. A row in several edges counts once for each of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marius_oac.config.link_prediction import RegularizationConfig
from marius_oac.models.link_prediction.decoders import Decoder


def penalized(config: RegularizationConfig) -> bool:
    """Whether there is a penalty."""
    return config.kind != "none" and config.weight > 0


def penalties(config: RegularizationConfig, decoder: Decoder, factors: Tensor) -> Tensor:
    """The penalties f, [...], of rows [..., D]."""
    if config.kind == "l2":
        return (factors * factors).sum(-1)
    if decoder.complex_moduli:
        factors = torch.linalg.vector_norm(torch.stack(factors.chunk(2, -1), -1), 2, -1)
    return (factors.abs() ** 3).sum(-1)
