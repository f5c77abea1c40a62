"""Tells where a configuration may read the columns of a log wrongly. What the columns are is guessed again from the
first rows, as `init` does, and compared with the configuration; nothing of a guess has to be kept in it.

A line is due for a guess that may be wrong and that the configuration follows, and for a guess beyond doubt that it
does not follow. None is due where the configuration decides otherwise than a doubtful guess, leaves a column out, or
says how the values are read (`kind`, `transform`).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import BagConfig, CategoricalConfig, NumericConfig, SequenceConfig
from marius_oac.data.logs.guess import FEW, Column, guess, is_id
from marius_oac.data.logs.sample import LogSample, read_sample
from marius_oac.data.logs.schema import is_text, plain
from marius_oac.errors import InputError

_MANY = 100  # different numbers, which are worse as categories


def doubts(config: LogConfig, path: Path) -> list[str]:
    """Lines on the columns of a log's first file, none if it can't be sampled."""
    with suppress(InputError):  # of columns that training does not read
        sample = _sample(config, path)
        if sample.format == "libsvm":
            return []
        features: dict[str, NumericConfig | CategoricalConfig | None] = dict.fromkeys(config.ignored)
        features |= {each.name: each for each in config.numeric}
        features |= {each.name: each for each in config.keyed()}
        found = {each.name: each for each in guess(sample)}
        lines = [_line(found[name], feature) for name, feature in features.items() if name in found]
        return [line for line in lines if line]
    return []


def _sample(config: LogConfig, path: Path) -> LogSample:
    return read_sample(path, config.format, config.delimiter, config.columns)


def _line(found: Column, feature: NumericConfig | CategoricalConfig | None) -> str:
    several = isinstance(feature, BagConfig | SequenceConfig)
    key = "multi_valued" if several else "numeric" if isinstance(feature, NumericConfig) else "categorical"
    key = "ignored" if feature is None else key
    if isinstance(feature, CategoricalConfig) and feature.kind != "auto":
        return ""
    if isinstance(feature, NumericConfig) and feature.transform != "auto":
        return ""
    if found.role == key:
        separator = str(found.section.get("separator", "|"))
        if isinstance(feature, BagConfig | SequenceConfig) and found.section and feature.separator != separator:
            return f"column '{found.name}' is split at {feature.separator!r}, but {found.why}: separator: {separator!r}"
        return found.line if found.doubt else ""
    ruins = {
        "categorical": found.kind in ("multi_valued", "time", "row_number") or found.values > _MANY,
        "numeric": found.kind in ("time", "row_number") or is_id(found.name) and found.values > FEW,
    }
    if found.doubt or found.kind == "unusable" or not ruins.get(key):
        return ""
    return f"column '{found.name}' is read as {key}, but looks {found.kind}: {found.why} (data.{found.role})"


def spellings(config: LogConfig, path: Path) -> list[str]:
    """Lines on the ids of a file that are written otherwise than numbers usually are, and are read as these."""
    lines = []
    with suppress(InputError):
        columns = _sample(config, path).columns
        for each in config.categorical:
            column = columns.get(each.name)
            if column is None or not is_text(plain(column.type)) or each.kind not in ("integer", "string"):
                continue
            zeros = "0*" if each.kind == "integer" else ""
            texts = column.unique().drop_null().cast(pa.string())
            plainly = pc.replace_substring_regex(texts, rf"^[ \t]*([+-]?){zeros}([0-9]+?)(\.0+)?[ \t]*$", r"\1\2")
            other = texts.filter(pc.not_equal(texts, plainly))
            if len(other):
                shown, read = other[0].as_py(), plainly.filter(pc.not_equal(texts, plainly))[0].as_py()
                lines.append(f"column '{each.name}': {shown!r} is read as {read} (kind: {each.kind})")
    return lines
