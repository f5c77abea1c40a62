"""The texts that a model's keys are fingerprints of, in the folder `names` of its run.

    names.json          manifest: see `data.graphs.derived`; the run's files whose texts were looked for
    vocabularies.npy    uint16 [n], keys.npy int64 [n], checks.npy uint32 [n]: of the keys, ascending
    starts.npy          int64 [n], ends.npy int64 [n]: where the text of each lies in
    texts.npy           uint8

After the last batch the columns of texts are read once more, up to `keys.names` MiB of such files. A run that goes on
with more files reads those alone, and keeps the texts of the keys that it still has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.config.ctr import CtrConfig, LogConfig
from marius_oac.config.log_columns import CategoricalConfig
from marius_oac.data.graphs.derived import DerivedArray, open_derived, read_derived, sound_derived
from marius_oac.data.logs.columns import texts_of
from marius_oac.data.logs.files import BLOCK_EXAMPLES, BlockReader, LogFile
from marius_oac.data.logs.fingerprints import fingerprints
from marius_oac.data.logs.run_log import RunLog
from marius_oac.data.logs.tables import vocabulary_names
from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.npy import npy_bytes
from marius_oac.runtime.files.untrusted import typed
from marius_oac.runtime.progress import Progress

FOLDER, MANIFEST = "names", "names.json"
_FORMAT = {"format": "marius_oac.names", "version": 1}
_ARRAYS = {
    "vocabularies": np.uint16, "keys": np.int64, "checks": np.uint32, "starts": np.int64, "ends": np.int64,
    "texts": np.uint8,
}  # fmt: skip
_DERIVED = [DerivedArray(f"{name}.npy", (kind,), (None,)) for name, kind in _ARRAYS.items()]
_KEY_BYTES = sum(np.dtype(kind).itemsize for name, kind in _ARRAYS.items() if name != "texts")
_FEWEST_BYTES = 8  # of a key's text, where there is little room


@dataclass(frozen=True)
class KeyTexts:
    """Keys in the order of (vocabulary, key, check), each once, and their texts; see the module."""

    vocabularies: np.ndarray
    keys: np.ndarray
    checks: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    texts: np.ndarray

    @classmethod
    def read(cls, run: Path) -> KeyTexts:
        """Those that a run has kept; of none where there are none, with a warning where they are damaged."""
        found = sound_derived(run / FOLDER, MANIFEST, _FORMAT, _DERIVED, _are_sound)
        if not isinstance(found, str):
            return cls(*found)
        if (run / FOLDER).exists():
            logger.warning(f"{run / FOLDER}: {found}; keys of texts are named by their fingerprints")
        return cls(*(np.empty(0, kind) for kind in _ARRAYS.values()))

    def find(self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> np.ndarray:
        """The place of each key, int64 [n]; -1: its text is not known. Arguments are uint16, int64 and uint32 [n]."""
        places = np.full(keys.size, -1)
        for vocabulary in np.unique(vocabularies):
            mine = np.flatnonzero(vocabularies == vocabulary)
            first, end = (int(np.searchsorted(self.vocabularies, vocabulary, side)) for side in ("left", "right"))
            found = first + np.searchsorted(self.keys[first:end], keys[mine])
            held = np.flatnonzero(found < end)
            held = held[(self.keys[found[held]] == keys[mine[held]]) & (self.checks[found[held]] == checks[mine[held]])]
            places[mine[held]] = found[held]
        return places

    def names(self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> list[str | None]:
        """The text of each key, None where it is not known; see `find`. Bytes that are no text: `\\xff`."""
        return [
            None if place < 0 else self.texts[self.starts[place] : self.ends[place]].tobytes().decode(*_AS_TEXT)
            for place in self.find(vocabularies, keys, checks).tolist()
        ]


_AS_TEXT = "utf-8", "backslashreplace"


def _are_sound(
    vocabularies: np.ndarray,
    keys: np.ndarray,
    checks: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    texts: np.ndarray,
) -> bool:
    """Whether each key is the fingerprint of its text, and they are in order."""
    if len({vocabularies.size, keys.size, checks.size, starts.size, ends.size}) != 1:
        return False
    if not ((starts >= 0) & (starts <= ends) & (ends <= texts.size)).all() or (ends - starts).sum() != texts.size:
        return False  # texts that overlap could be many times as long together as the file
    rises = (np.diff(vocabularies.astype(np.int64)) > 0) | ((np.diff(vocabularies) == 0) & (keys[1:] > keys[:-1]))
    found, theirs = fingerprints(texts, starts, ends)
    return bool(rises.all()) and np.array_equal(found, keys) and np.array_equal(theirs, checks)


class _Wanted:
    """The keys whose texts are looked for, in the order of `KeyTexts`, and what of them was found.

    Args:
        arrays: of the tables' indices, as `key_arrays`.
        room: bytes for all that is kept. Where there are more keys than have room, those of later rows have no names.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], room: int):
        tables = [name.removesuffix(".keys") for name in arrays if name.endswith(".index.keys")]
        rows = [np.flatnonzero(arrays[f"{table}.checks"]) for table in tables]  # neither free nor shared
        order = np.argsort(np.concatenate(rows), kind="stable")[: room // (_KEY_BYTES + _FEWEST_BYTES)]
        kept = [
            np.concatenate([arrays[f"{table}.{part}"][mine] for table, mine in zip(tables, rows, strict=True)])[order]
            for part in ("vocabularies", "keys", "checks")
        ]
        sort = np.lexsort(kept[::-1])
        vocabularies, keys, checks = (part[sort] for part in kept)
        first = np.ones(keys.size, bool)  # tables of two widths may have the same keys
        first[1:] = (np.diff(vocabularies) != 0) | (np.diff(keys) != 0)
        parts = vocabularies[first], keys[first], checks[first]
        nowhere = np.full(parts[1].size, -1)
        self._held = KeyTexts(*parts, nowhere, nowhere.copy(), np.empty(0, np.uint8))
        self._left = room - _KEY_BYTES * nowhere.size
        self._pieces = [self._held.texts]
        self._used = self.found = 0

    @property
    def count(self) -> int:
        """The number of keys."""
        return self._held.keys.size

    def digest(self) -> str:
        """SHA-256 of the keys, hexadecimal."""
        parts = self._held.vocabularies, self._held.keys, self._held.checks
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def take(
        self,
        vocabularies: np.ndarray,
        keys: np.ndarray,
        checks: np.ndarray,
        text: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        """Copies the texts of keys that have none yet, as far as there is room. Arguments are as of `KeyTexts`."""
        held, places = self._held, self._held.find(vocabularies, keys, checks)
        new = np.flatnonzero(places >= 0)
        new = new[held.starts[places[new]] < 0]
        places, order = np.unique(places[new], return_index=True)
        firsts = new[order]
        lengths = ends[firsts] - starts[firsts]
        behind = np.cumsum(lengths)
        fits = int(np.searchsorted(behind, self._left, "right"))
        places, firsts, lengths, behind = places[:fits], firsts[:fits], lengths[:fits], behind[:fits]
        if not fits:
            return
        held.starts[places], held.ends[places] = self._used + behind - lengths, self._used + behind
        bytes_of = np.repeat(starts[firsts] - (behind - lengths), lengths) + np.arange(behind[-1])
        self._pieces.append(text[bytes_of])
        self._used, self._left = self._used + int(behind[-1]), self._left - int(behind[-1])
        self.found += fits

    def texts(self) -> KeyTexts:
        """The keys whose texts were found."""
        held, known = self._held, self._held.starts >= 0
        keys = held.vocabularies[known], held.keys[known], held.checks[known]
        return KeyTexts(*keys, held.starts[known], held.ends[known], np.concatenate(self._pieces))


def keep_names(run: Path, config: CtrConfig, log: RunLog, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the folder `names` of a run.

    What prevents it is a warning: the trained model is none the worse.

    Args:
        arrays: of the tables' indices, as `key_arrays`.
    """
    features = [each for each in config.data.keyed() if each.kind in ("string", "verbatim")]
    if not (features and config.keys.names):
        return
    wanted = _Wanted(arrays, config.keys.names << 20)
    try:
        _keep(run, config, log, wanted, features)
    except InputError as error:
        logger.warning(f"keys of texts are named by their fingerprints: {error}")


def _keep(run: Path, config: CtrConfig, log: RunLog, wanted: _Wanted, features: Sequence[CategoricalConfig]) -> None:
    files, before, first = [file.fingerprint for file in log.files], KeyTexts.read(run), 0
    if before.keys.size:
        manifest = run / FOLDER / MANIFEST
        done = typed(read_derived(manifest).get("files"), manifest, list[str])
        # The last segment may have been passed over once more since then, and keys that waited have rows now.
        first = min(len(done), log.segments[-1].first) if files[: len(done)] == done else 0
    numbers = {name: number for number, name in enumerate(vocabulary_names(config))}

    def make(temporary: Path) -> None:
        for begin in range(0, before.keys.size, BLOCK_EXAMPLES):
            part = slice(begin, begin + BLOCK_EXAMPLES)
            held = before.vocabularies[part], before.keys[part], before.checks[part]
            wanted.take(*held, before.texts, before.starts[part], before.ends[part])
        for feature, texts in _read(log.files[first:], _narrowed(config.data, features), features):
            if wanted.found == wanted.count:
                break
            keys, checks = fingerprints(*texts)
            wanted.take(
                np.full(keys.size, numbers[feature.vocabulary or feature.name], np.uint16), keys, checks, *texts
            )
        found = wanted.texts()
        for name in _ARRAYS:
            (temporary / f"{name}.npy").write_bytes(npy_bytes(getattr(found, name)))
        if missing := wanted.count - wanted.found:
            logger.warning(
                f"{missing:,} of {wanted.count:,} keys of texts have no name (keys.names: {config.keys.names} MiB)"
            )

    about = {**_FORMAT, "files": files, "wanted": wanted.digest(), "names": config.keys.names}
    open_derived(run / FOLDER, MANIFEST, about, _DERIVED, make, "the texts of the keys are read again", _are_sound)


def _narrowed(data: LogConfig, features: Sequence[CategoricalConfig]) -> LogConfig:
    """The configuration by which these features alone are read."""
    names = {each.name for each in features}
    columns = [each.name for each in data.numeric] + [each.name for each in data.keyed()]
    others = [name for name in columns if name not in names]
    lists = ("categorical", "multi_valued", "sequences")
    kept = {key: tuple(each for each in getattr(data, key) if each.name in names) for key in lists}
    plain = data.unweighted
    return plain.model_copy(update={**kept, "numeric": (), "ignored": (*plain.ignored, *others)})


def _read(
    files: Sequence[LogFile], config: LogConfig, features: Sequence[CategoricalConfig]
) -> Iterator[tuple[CategoricalConfig, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Yields the texts of files by feature, as `texts_of`."""
    with (
        BlockReader(files, config, with_labels=False) as reader,
        Progress("reading the texts of keys", "examples", sum(file.rows for file in files)) as progress,
    ):
        for number, file in enumerate(files):
            for block in range(-(-file.rows // BLOCK_EXAMPLES)):
                raw = reader.lazy_block(number, block, BLOCK_EXAMPLES).raw
                for _, batch in raw.parse(np.arange(len(raw))):
                    for feature in features:
                        yield feature, texts_of(batch.column(feature.name), feature, file.path)
                progress.add(len(raw))
