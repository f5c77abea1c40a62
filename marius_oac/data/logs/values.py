"""Single values of a feature as keys, and keys as values, for questions about a trained model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.config.log_columns import CategoricalConfig
from marius_oac.data.logs.fingerprints import MISSING, fingerprints, hexadecimals, integers
from marius_oac.errors import InputError, shown


def keys_of(values: Sequence[str | int], feature: CategoricalConfig, texts: bool) -> tuple[np.ndarray, np.ndarray]:
    """The keys, int64 [n], and checks, uint32 [n], of values, as of those in a log; "" stands for a missing one.

    Args:
        texts: of a feature of kind `auto`: whether its keys are fingerprints of texts.

    Raises:
        InputError: a value is not the number that the feature's values are.
    """
    pieces = [_text(value, feature.kind).encode("utf-8", "surrogatepass") for value in values]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    ends = np.cumsum(lengths)
    where = np.frombuffer(b"".join(pieces), np.uint8), ends - lengths, ends
    if feature.kind == "string" or (feature.kind == "auto" and texts):
        return fingerprints(*where)
    keys, wrong = (hexadecimals if feature.kind == "hex" else integers)(*where)
    if wrong >= 0:
        number = "a hexadecimal number" if feature.kind == "hex" else "an integer"
        raise InputError(f"its values are each {number} of 64 bits, not {shown(values[wrong])}", feature.name)
    return keys, np.zeros(len(values), np.uint32)


def value_of(key: int, check: int, feature: CategoricalConfig) -> str:
    """What is known of the value that has this key: the number, or of a text its fingerprint in hexadecimal; "" for a
    missing one."""
    if key == MISSING:
        return ""
    bits = key & ((1 << 64) - 1)
    return f"{bits:016x}" if check else f"{bits:x}" if feature.kind == "hex" else str(key)


def _text(value: str | int, kind: str) -> str:
    """A value as it would stand in a text."""
    if isinstance(value, str):
        return value
    return f"{int(value) & ((1 << 64) - 1):x}" if kind == "hex" else str(int(value))
