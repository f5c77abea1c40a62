"""How many of the different ids of each column a model knows: few, if a file writes them otherwise than those that it
was trained on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.fingerprints import MISSING
from marius_oac.data.logs.tables import FeatureTable, TableKeys
from marius_oac.data.logs.values import value_of

EXAMPLES = 1 << 17  # in which ids are counted


class DistinctIds:
    """Counts the different ids of the first `EXAMPLES` examples."""

    def __init__(self, config: LogConfig):
        self._features = {each.name: each for each in config.keyed()}
        self._examples: dict[str, int] = {}
        self._found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self._features}

    def add(self, table: FeatureTable, keys: TableKeys, unknown: np.ndarray) -> None:
        """Adds the keys of a block in a table; `unknown`: which of them have no row, bool [n]."""
        done = self._examples.get(table.name, 0)
        self._examples[table.name] = done + keys.examples
        if done >= EXAMPLES:
            return
        end = 0
        for name in (*table.singles, *table.bags, *table.sequences):
            first, end = end, end + (int(keys.offsets[name][-1]) if name in keys.offsets else keys.examples)
            if name in self._features:  # a bucket of numbers is no id
                ids, places = np.unique(keys.keys[first:end], return_index=True)
                self._found[name].append((ids, unknown[first:end][places]))

    def lines(self) -> Iterator[str]:
        """Yields a line for each column more than half of whose different ids are unknown."""
        for name, blocks in self._found.items():
            if not blocks:
                continue
            ids, places = np.unique(np.concatenate([each for each, _ in blocks]), return_index=True)
            unknown = np.concatenate([each for _, each in blocks])[places][ids != MISSING]
            count, missing = unknown.size, int(np.count_nonzero(unknown))
            if missing * 2 <= count:
                continue
            feature = self._features[name]
            integer = feature.kind in ("integer", "hex")
            example = f", such as {value_of(int(ids[ids != MISSING][unknown][0]), 0, feature)}" if integer else ""
            what = "none" if missing == count else f"only {count - missing:,}"
            most = f" of the first {EXAMPLES:,} examples" if max(self._examples.values()) > EXAMPLES else ""
            yield f"column '{name}': {what} of its {count:,} distinct ids{most} is known to the model{example}"
