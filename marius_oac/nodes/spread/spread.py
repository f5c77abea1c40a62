"""How the rows that a task describes are spread over nodes."""

from __future__ import annotations

from marius_oac.nodes.spread.contract import Part, SpreadRows
from marius_oac.nodes.spread.keyed import KeyedRows
from marius_oac.nodes.spread.numbered import NumberedRows
from marius_oac.runs.rows import KeyedTables, NumberedTables
from marius_oac.storage.placement import FEWEST_SHARDS, NUM_SHARDS


def spread(tables: NumberedTables | KeyedTables, part: Part) -> SpreadRows:
    """Returns the rows of a task (`Task.tables`) of which this process has a part."""
    if isinstance(tables, NumberedTables):
        return NumberedRows(part=part, **vars(tables))
    return KeyedRows(part=part, **vars(tables))


def num_shards(tables: NumberedTables | KeyedTables) -> int:
    """V, the number of virtual shards if a run begins: few where keys wait, as those of a shard share a row."""
    waits = isinstance(tables, KeyedTables) and tables.admit_after > 1
    return FEWEST_SHARDS if waits else NUM_SHARDS
