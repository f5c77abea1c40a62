"""Makes a graph folder from files of edges: reads, assigns ids, splits and writes them, all streaming.

The folder is built beside its destination and renamed at the end, so a graph folder that exists is complete.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from marius_oac.data.folders import default_cache_dir, new_folder
from marius_oac.data.layout import write_manifest
from marius_oac.data.reading.download import fetch
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.data.reading.registry import EMBEDDED, KnownDataset, find_dataset, is_known, locate
from marius_oac.data.reading.remote import is_address, shown
from marius_oac.data.reading.sources import Source, files_of, partitioned_by, several
from marius_oac.data.splits import SPLITS, DrawnSplits, GivenSplits, check_fractions
from marius_oac.errors import InputError
from marius_oac.prepare.assemble import Assembler, Counts, RawEdges
from marius_oac.prepare.encode import Encoder
from marius_oac.prepare.ogb import write_ogb
from marius_oac.prepare.reading import check_files, read_files
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import check_place
from marius_oac.runtime.progress import Progress
from marius_oac.runtime.standstill import watched
from marius_oac.types import present

DEFAULT_FRACTION = 0.05
_MANY_RELATIONS = 100
UNSEEN = ("train", "skip", "error", "keep")


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """What to prepare, and where to write it.

    Give either `source` (files, or a known data set's name), or `train` and optionally `valid` and `test`. Several
    files have the graph of one with their edges, in the order given; a folder and a pattern stand for their files, in
    the order of names (`sources`).

    Attributes:
        out: the graph folder to make; it must not exist.
        source: what is split by fractions: a file, a folder, a pattern, the address of one, or several of these; or a
            name in the registry.
        train, valid, test: the splits likewise.
        from_dir: a folder that holds the known data set's files; nothing is downloaded then.
        cache_dir: where downloads of known data sets are kept.
        read: how edges are stored in the files; the registry knows this for known data sets.
        valid_fraction, test_fraction: fractions of `source`, 0.05 each by default; refused with given splits.
        seed: of the draw of splits.
        unseen: what happens to edges of valid or test with an entity or relation that train lacks. They go to train,
            as many as it takes in the file's order ("train", the default where splits are drawn, refused where they
            are given), are left out ("skip", the default where they are given), refused ("error"), or kept, and their
            names get rows that are never trained ("keep").
        duplicates: what happens to edges that equal an earlier one (order: train, valid, test). They are counted and
            kept ("keep"), or left out before fractions are drawn ("drop").

    Raises:
        InputError: the files or the options contradict each other.
    """

    out: Path
    source: Source | Sequence[Source] | None = None
    train: Source | Sequence[Source] | None = None
    valid: Source | Sequence[Source] | None = None
    test: Source | Sequence[Source] | None = None
    from_dir: Path | None = None
    cache_dir: Path | None = None
    read: ReadOptions = field(default_factory=ReadOptions)
    valid_fraction: float | None = None
    test_fraction: float | None = None
    seed: int = 0
    unseen: Literal["train", "skip", "error", "keep"] | None = None
    duplicates: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        for name in ("source", *SPLITS):
            given = getattr(self, name)
            if given is not None and not isinstance(given, (str, Path)):  # it may be read only once
                object.__setattr__(self, name, tuple(given))
        if bool(several(self.source)) == bool(several(self.train)):
            raise InputError("name files or a data set, or the files of the splits: one of these, and not both")
        if not several(self.train) and (self.valid or self.test):
            raise InputError("files for valid or test need one for train")
        if self.from_dir is not None and len(several(self.source)) != 1:
            raise InputError("a folder with a data set's files needs the data set's name", "from_dir")
        for name, allowed in (("unseen", UNSEEN), ("duplicates", ("keep", "drop"))):
            if getattr(self, name) not in (*allowed, getattr(type(self), name)):
                raise InputError(f"one of {', '.join(allowed)} is needed, not {getattr(self, name)!r}", name)
        if self.seed < 0:
            raise InputError(f"a seed of 0 or more is needed, not {self.seed}", "seed")
        check_fractions(*_fractions(self))


@dataclass(kw_only=True)
class PreparedGraph(Counts):
    """The result of `prepare`.

    Attributes:
        duplicates_dropped: whether the duplicates were dropped, not kept.
        unseen: what happened to edges with names that train lacked; see `PrepareRequest`.
        comment_lines: the number of lines of text files that were skipped as comments.
        metric: what is computed with the negatives that the graph has of its own, by OGB's rule; None: it has none.
    """

    path: Path
    duplicates_dropped: bool
    unseen: str
    comment_lines: int
    fingerprint: str
    metric: str | None = None

    def __str__(self) -> str:
        splits = " / ".join(f"{self.edges[split]:,}" for split in SPLITS)
        lines = [f"{self.path}: {self.num_nodes:,} nodes, {self.num_relations:,} relations, {splits} edges"]
        if self.num_relations > _MANY_RELATIONS and 2 * self.num_relations > self.num_nodes:
            lines.append(
                "  so many relations are rare: are the columns head, relation and tail? (--columns names others)"
            )
        if self.duplicates:
            lines.append(f"  {self.duplicates:,} duplicates, {'dropped' if self.duplicates_dropped else 'kept'}")
        if unseen := sum(self.unseen_edges.values()):
            names = f"{self.unseen_nodes:,} nodes and {self.unseen_relations:,} relations"
            if self.unseen == "train":
                drawn = " and ".join(f"{count:,} for {split}" for split, count in self.unseen_edges.items())
                lines.append(f"  {unseen:,} edges went to train instead ({drawn} were drawn): it had none of {names}")
            else:
                done = "kept" if self.unseen == "keep" else "skipped; published results rank them (--unseen keep)"
                lines.append(f"  {unseen:,} edges of valid and test with {names} that train lacks, {done}")
        if self.copy is not None:
            copies = " and ".join(f"{count:,} edges of {split}" for split, count in self.copies.items() if count)
            lines.append(f"  {copies} equal an edge of train, as: {self.copy} (--duplicates drop leaves them out)")
        if self.comment_lines:
            lines.append(f"  {self.comment_lines:,} comment lines skipped")
        if self.metric:
            lines.append(f"  with OGB's negatives for valid and test; evaluations compute {self.metric}")
        return "\n".join(lines)


@watched()
def prepare(request: PrepareRequest) -> PreparedGraph:
    """Makes a graph folder (see `layout` for its files).

    Peak memory is a few chunks of edges, what `encode`, `numbering` and `repetitions` take, some hundred MiB each, or
    `database.MEMORY_LIMIT_BYTES` where there are many names, and 9 bytes per node.

    Raises:
        InputError: the request, a file or a name is wrong; `out` exists; the disk is full, or too small for what is
            needed at least (see `room`). No files are left then.
    """
    out = Path(request.out)
    check_place(out)
    if os.path.lexists(out):
        raise InputError("exists already; choose another folder or remove it", out)
    dataset = _known_dataset(request)
    if dataset is not None and dataset.ogb is not None:
        return _prepare_ogb(request, dataset, out)
    given, read = _find_files(request, dataset)
    files = {split: files_of(named) for split, named in given.items()}
    for named in files.values():
        for column in partitioned_by(named):
            logger.warning(f"the folders' names are values of a column, {column}, which is not in the files: not read")
    request = replace(request, unseen=_unseen(request, "all" in files))
    if "all" not in files and (request.valid_fraction, request.test_fraction) != (None, None):
        raise InputError(
            "fractions are for edges that are split here; these splits are given", "valid_fraction, test_fraction"
        )
    check_files(files, out)
    with new_folder(out) as folder:
        work = folder / "work"
        work.mkdir()
        with Encoder(work) as encoder:
            ends, comment_lines = read_files(encoder, files, read, out, work)
            with Progress("sorting and joining names", "steps", 3) as progress:
                encoder.resolve(progress)
            raw = RawEdges(encoder, work, request.duplicates == "drop")
            splits = _splits(request, files, ends, raw.kept_rows)
            counts = Assembler(encoder, raw, splits, str(request.unseen)).write(folder)
        shutil.rmtree(work)
        shows = {split: [shown(str(each)) for each in named] for split, named in given.items()}
        sources = {split: named if len(named) > 1 else named[0] for split, named in shows.items()}
        manifest = _manifest(request, read, sources, counts, comment_lines)
        names = [f"{split}.npy" for split in SPLITS] + [path.name for path in folder.glob("*.parquet")]
        digest = write_manifest(folder, manifest, sorted(names))
    return PreparedGraph(
        path=out,
        duplicates_dropped=request.duplicates == "drop",
        unseen=str(request.unseen),
        comment_lines=comment_lines,
        fingerprint=digest,
        **vars(counts),
    )


def _prepare_ogb(request: PrepareRequest, dataset: KnownDataset, out: Path) -> PreparedGraph:
    rules, name = present(dataset.ogb), dataset.name
    for option in ("read", "unseen", "duplicates", "valid_fraction", "test_fraction", "seed"):
        if getattr(request, option) != getattr(PrepareRequest(out=out, source=name), option):
            raise InputError("is for other data: OGB's sets have their splits, ids and negatives", option)
    files = _files_of(request, dataset)
    with new_folder(out) as folder:
        work = folder / "work"
        work.mkdir()
        counts = write_ogb(rules.kind, files, folder, work)
        shutil.rmtree(work)
        found = counts.num_nodes, counts.num_relations, tuple(counts.edges.values())
        if found != (dataset.nodes, dataset.relations, dataset.edges):
            logger.warning(f"{name}: these are not the counts that OGB publishes: {dataset.describe()}")
        manifest = {
            "num_nodes": counts.num_nodes,
            "num_relations": counts.num_relations,
            "edges": counts.edges,
            "negatives": {"metric": rules.metric},
            "sources": {part: str(path) for part, path in files.items()},
            "options": {"dataset": name},
        }
        digest = write_manifest(folder, manifest, sorted(path.name for path in folder.iterdir()))
    return PreparedGraph(
        path=out, duplicates_dropped=False, unseen="keep", comment_lines=0, fingerprint=digest, metric=rules.metric,
        **vars(counts),
    )  # fmt: skip


def _known_dataset(request: PrepareRequest) -> KnownDataset | None:
    """The data set that is named; None: files are."""
    named = several(request.source)
    if len(named) != 1 or is_address(named[0]):
        return None
    source = str(named[0])
    if request.from_dir is None and (os.path.exists(source) or _looks_like_a_path(source)):
        return None
    return find_dataset(source)


def _files_of(request: PrepareRequest, dataset: KnownDataset) -> dict[str, Path]:
    """The data set's files, downloaded where they are not at hand."""
    if request.from_dir is not None:
        return locate(dataset, Path(request.from_dir))
    if dataset.embedded:
        return locate(dataset, EMBEDDED / dataset.name)
    return fetch(dataset, request.cache_dir or default_cache_dir())


def _find_files(
    request: PrepareRequest, dataset: KnownDataset | None
) -> tuple[Mapping[str, Sequence[Source]], ReadOptions]:
    """What is named by split ("all" where splits are drawn), and how to read it."""
    if several(request.train):
        given = {"train": several(request.train), "valid": several(request.valid), "test": several(request.test)}
        named = {split: sources for split, sources in given.items() if sources}
        return (named if len(named) > 1 else {"all": named["train"]}), request.read
    if dataset is None:
        return {"all": several(request.source)}, request.read
    files = _files_of(request, dataset)
    default = ReadOptions()
    asked = {f.name: getattr(request.read, f.name) for f in fields(ReadOptions)}
    read = replace(dataset.read, **{k: v for k, v in asked.items() if v != getattr(default, k)})
    return {split: [path] for split, path in files.items()}, read


def _unseen(request: PrepareRequest, drawn: bool) -> Literal["train", "skip", "error", "keep"]:
    if request.unseen == "train" and not drawn:
        raise InputError("edges go to train where splits are drawn, and these are given: skip, error or keep", "unseen")
    return request.unseen or ("train" if drawn else "skip")


def _looks_like_a_path(source: str) -> bool:
    return not is_known(source) and ("." in source or os.sep in source or glob.has_magic(source))


def _splits(
    request: PrepareRequest, files: Mapping[str, Sequence[Source]], ends: tuple[int, int, int], kept_rows: int
) -> GivenSplits | DrawnSplits:
    if "all" in files:
        return DrawnSplits(kept_rows, *_fractions(request), request.seed)
    return GivenSplits(ends)


def _fractions(request: PrepareRequest) -> tuple[float, float]:
    fractions = (request.valid_fraction, request.test_fraction)
    valid, test = (DEFAULT_FRACTION if fraction is None else fraction for fraction in fractions)
    return valid, test


def _manifest(
    request: PrepareRequest, read: ReadOptions, sources: Mapping[str, object], counts: Counts, comment_lines: int
) -> dict[str, object]:
    options = {name: getattr(request, name) for name in ("seed", "unseen", "duplicates")}
    if "all" in sources:
        options |= dict(zip(("valid_fraction", "test_fraction"), _fractions(request), strict=True))
    return {
        "num_nodes": counts.num_nodes,
        "num_relations": counts.num_relations,
        "edges": counts.edges,
        "duplicates": counts.duplicates,
        "copies": counts.copies,
        "unseen": {"edges": counts.unseen_edges, "nodes": counts.unseen_nodes, "relations": counts.unseen_relations},
        "comment_lines": comment_lines,
        "sources": sources,
        "options": options | {"read": {f.name: getattr(read, f.name) for f in fields(ReadOptions)}},
    }
