"""Known data sets: their sources, file formats and licences; see `datasets.yaml`.

A checksum is given only if the project has verified it with an actual file; None means "not verified". It is the
SHA-256 of a split's decompressed text, so it is the same for train.txt and train.txt.gz.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.data.reading.text import read_pieces
from marius_oac.errors import InputError

EMBEDDED = Path(__file__).parent / "embedded"
_SUFFIXES = (".txt", ".tsv", ".csv")
NODE_COUNTS = "nodes"
"""Of OGB's files that with the numbers of nodes."""
Kind = Literal["triples", "typed", "sources", "pairs"]
"""How OGB's splits hold their edges and negatives; see `ogb`."""


@dataclass(frozen=True, kw_only=True)
class OgbRules:
    """What is special to a set of the Open Graph Benchmark: the kind of its files, and the metric of its evaluator."""

    kind: Kind
    metric: str


@dataclass(frozen=True, kw_only=True)
class KnownDataset:
    """One data set of the registry, `datasets.yaml`, which documents the fields."""

    name: str
    nodes: int
    relations: int
    edges: tuple[int, ...]
    licence: str
    urls: Mapping[str, str]
    aliases: tuple[str, ...] = ()
    members: Mapping[str, str] = field(default_factory=dict)
    read: ReadOptions = ReadOptions()
    sha256: Mapping[str, str] | None = None
    embedded: bool = False
    ogb: OgbRules | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """("train", "valid", "test"), or ("all",) for one file without splits."""
        return ("train", "valid", "test") if len(self.edges) == 3 else ("all",)

    @property
    def files(self) -> tuple[str, ...]:
        """What there is a file for: the splits, and what else OGB's sets need."""
        return (*self.splits, NODE_COUNTS) if self.ogb else self.splits

    @property
    def checksum(self) -> str:
        """Whether files are compared with known checksums."""
        return "verified" if self.sha256 else "not verified"

    def describe(self) -> str:
        """One line: size, licence, and whether the checksum is verified."""
        edges = " / ".join(f"{count:,}" for count in self.edges)
        return (
            f"{self.name}: {self.nodes:,} nodes, {self.relations:,} relations, {edges} edges; "
            f"licence: {self.licence}; checksum: {self.checksum}{'; embedded' if self.embedded else ''}"
        )


DATASETS = TypeAdapter(tuple[KnownDataset, ...]).validate_python(
    yaml.safe_load((Path(__file__).parent / "datasets.yaml").read_text("utf-8"))
)


def _names() -> dict[str, KnownDataset]:
    return {name: dataset for dataset in DATASETS for name in (dataset.name, *dataset.aliases)}


def is_known(name: str) -> bool:
    """Whether the registry has a data set of this name or alias, ignoring case."""
    return name.lower() in _names()


def describe() -> str:
    """A table of all data sets: name, sizes, licence, checksum, address."""
    rows = [("name", "nodes", "edges", "licence", "checksum", "address")]
    for one in DATASETS:
        source = f"{'comes with marius_oac; ' * one.embedded}{next(iter(one.urls.values()))}"
        rows.append((one.name, f"{one.nodes:,}", f"{sum(one.edges):,}", one.licence, one.checksum, source))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "{:{}}  {:>{}}  {:>{}}  {:{}}  {:{}}  {:{}}"
    pairs = ([part for cell in zip(row, widths, strict=True) for part in cell] for row in rows)
    return "\n".join(form.format(*each).rstrip() for each in pairs)


def find_dataset(name: str) -> KnownDataset:
    """The data set of this name or alias, ignoring case.

    Raises:
        InputError: there is none; lists similar names.
    """
    names = _names()
    if name.lower() in names:
        return names[name.lower()]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    meant = list(dict.fromkeys(names[match].name for match in near))
    known = f"known: {', '.join(d.name for d in DATASETS)}; a click log is not prepared: marius-oac init"
    hint = f"did you mean {' or '.join(meant)}?" if meant else known
    raise InputError(f"no such file, and no known data set of that name; {hint}", name)


def dataset_of(name_or_path: str | os.PathLike[str]) -> KnownDataset:
    """The data set that comes with this package and is named where a graph's folder could be.

    Raises:
        InputError: there is no such graph (says how to prepare it).
    """
    path = Path(name_or_path)
    if not is_known(str(name_or_path)) and (path.suffix or len(path.parts) > 1):
        raise InputError("no such graph folder", path)
    dataset = find_dataset(str(name_or_path))
    if not dataset.embedded:
        raise InputError(f"prepare it first: marius-oac prepare {dataset.name} --out FOLDER", dataset.name)
    return dataset


def locate(dataset: KnownDataset, folder: Path) -> dict[str, Path]:
    """The data set's files in a folder, by split. Known checksums are verified.

    A split's file may have its name in the archive or in its address, or be called train.txt, train.tsv, train.csv
    (also .gz), train.parquet or train.npy. OGB's have their places in the folder that its archive is unpacked to.

    Raises:
        InputError: the folder or a file is missing, or a checksum differs.
    """
    if not folder.is_dir():
        raise InputError("no such folder", folder)
    if dataset.ogb:
        return _locate_ogb(dataset, folder)
    found = {}
    for split in dataset.splits:
        stems = [split] if split != "all" else ["all", "edges"]
        plain = [f"{stem}{suffix}" for stem in stems for suffix in _SUFFIXES]
        plain = [member.rsplit("/", 1)[-1] for member in (dataset.members.get(split),) if member] + plain
        if split in dataset.urls:
            plain.insert(0, dataset.urls[split].rsplit("/", 1)[-1].removesuffix(".gz"))
        names = [name + gz for name in plain for gz in ("", ".gz")]
        names += [f"{stem}{suffix}" for stem in stems for suffix in (".parquet", ".npy")]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise InputError(f"{dataset.name}'s {split} file is missing ({names[0]}, {names[1]} or the like)", folder)
        verify(dataset, split, path)
        found[split] = path
    return found


def _locate_ogb(dataset: KnownDataset, folder: Path) -> dict[str, Path]:
    found = {name: folder / dataset.members[name].partition("/")[2] for name in dataset.files}
    for path in found.values():
        if not path.is_file():
            raise InputError(f"is missing; {dataset.name} is expected here as OGB's package unpacks it", path)
    return found


def verify(dataset: KnownDataset, split: str, path: Path) -> None:
    """Raises InputError if the registry has a checksum for the split and that of this text file differs."""
    if dataset.sha256 is None or path.suffix in (".parquet", ".npy"):
        return
    digest = hashlib.sha256()
    for piece in read_pieces(path):
        digest.update(piece)
    if digest.hexdigest() != dataset.sha256[split]:
        raise InputError(
            f"this is not {dataset.name}'s {split} file (SHA-256 {digest.hexdigest()[:12]}..., "
            f"{dataset.sha256[split][:12]}... is expected)",
            path,
        )
