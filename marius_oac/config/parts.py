"""The decoders, losses, row optimizers and initial values of the package, as data. Imports neither torch nor numba.

These tables are the only lists of their names; a user's part is named FILE.py:CLASS instead. A class defines what the
part computes; a table holds what reading a configuration needs before torch is imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from marius_oac.config.named_files import MODULE


class Part(NamedTuple):
    """A part that a configuration names.

    Attributes:
        place: its class, `module:CLASS` below `marius_oac.models`.
        keys: the keys of its section that only some parts use, and this one does.
        even: a decoder whose vectors are complex numbers, two floats each.
        uses_relations: False for a decoder of graphs without relations.
    """

    place: str
    keys: tuple[str, ...] = ()
    even: bool = False
    uses_relations: bool = True


DECODERS = {
    "distmult": Part("link_prediction.decoders:DistMult"),
    "complex": Part("link_prediction.decoders:ComplEx", even=True),
    "transe": Part("link_prediction.decoders:TransE", ("norm",)),
    "rotate": Part("link_prediction.decoders:RotatE", even=True),
    "dot": Part("link_prediction.decoders:Dot", uses_relations=False),
}
DEFAULT_DECODER, WITHOUT_RELATIONS = "complex", "dot"
LOSSES = {
    "softmax": Part("link_prediction.losses:Softmax"),
    "logistic": Part("link_prediction.losses:Logistic"),
    "margin": Part("link_prediction.losses:Margin", ("margin",)),
    "self_adversarial": Part("link_prediction.losses:SelfAdversarial", ("margin", "temperature")),
}
ROW_OPTIMIZERS = {
    "sgd": Part("compute.update_rules:SGD"),
    "adagrad": Part("compute.update_rules:Adagrad", ("epsilon", "initial_accumulator")),
    "rowwise_adagrad": Part("compute.update_rules:RowwiseAdagrad", ("epsilon", "initial_accumulator")),
    "adam": Part("compute.update_rules:Adam", ("epsilon", "beta1", "beta2")),
}


INITIALS = ("uniform", "normal")


OWN = Part("")
"""What is known of a user's part before its file is executed."""


def own_file(name: str) -> tuple[Path, str] | None:
    """The file and the name of FILE.py:NAME; None if it is something else."""
    path, colon, attribute = name.rpartition(":")
    return (Path(path), attribute) if colon and path.endswith(".py") else None


def users_of(parts: Mapping[str, Part], key: str) -> tuple[str, ...]:
    """The parts that use a key."""
    return tuple(name for name, part in parts.items() if key in part.keys)


def _one_of(parts: Collection[str], own: str = "CLASS") -> BeforeValidator:
    def check(name: Any) -> Any:
        if not (isinstance(name, str) and (name in parts or own_file(name))):
            raise PydanticCustomError("part", f"Input should be {', '.join(map(repr, parts))} or FILE.py:{own}")
        return name

    return BeforeValidator(check)


DecoderName = Annotated[str, _one_of(DECODERS), MODULE]
LossName = Annotated[str, _one_of(LOSSES), MODULE]
RowOptimizerName = Annotated[str, _one_of(ROW_OPTIMIZERS), MODULE]
InitialName = Annotated[str, _one_of(INITIALS, "NAME"), MODULE]


def values_of(parts: Collection[str], own: str = "FILE.py:CLASS, a part of your own") -> str:
    """The names, as a key's description lists them."""
    return f"Values: {', '.join(parts)}, or {own}."
