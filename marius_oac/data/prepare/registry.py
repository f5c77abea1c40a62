"""Known data sets: where they come from, how they stand in their files, under which licence.

A checksum stands only where the project has verified it against a file that it had; None means "not verified". It is
the SHA-256 of a split's text, decompressed, so that it holds for train.txt and train.txt.gz alike.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from marius_oac.data.prepare.edge_file import ReadOptions
from marius_oac.data.prepare.text import read_pieces
from marius_oac.errors import InputError

EMBEDDED = Path(__file__).parent / "embedded"
_SUFFIXES = (".txt", ".tsv", ".csv")
_CODEX = "https://raw.githubusercontent.com/tsafavi/codex/master/data/triples"
_CONVE = "https://github.com/TimDettmers/ConvE/raw/master"
_EVEREST = "https://everest.hds.utc.fr/lib/exe/fetch.php?media=en:"
_TOP_LEVEL = {split: f"{split}.txt" for split in ("train", "valid", "test")}


@dataclass(frozen=True, kw_only=True)
class KnownDataset:
    """One data set of the registry.

    Attributes:
        name, aliases: what a user may call it, whatever the case.
        nodes, relations, edges: as its owners publish them (edges: train, valid, test, or all where there is no split).
        licence: as its owners state it; read theirs before you pass the data on.
        urls: address of the archive ("archive") or of each file ("train", "valid", "test", or "all").
        members: path of each split in the archive.
        read: how edges stand in the files.
        sha256: of each split's decompressed text; None where nobody here has verified it.
        embedded: comes with this package.
        obstacle: why it can't be fetched, and what to do instead.
    """

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
    obstacle: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """("train", "valid", "test"), or ("all",) for one file without splits."""
        return ("train", "valid", "test") if len(self.edges) == 3 else ("all",)

    def describe(self) -> str:
        """One line: size, licence, and whether the checksum is verified."""
        edges = " / ".join(f"{count:,}" for count in self.edges)
        checksum = "verified" if self.sha256 else "not verified"
        return (
            f"{self.name}: {self.nodes:,} nodes, {self.relations:,} relations, {edges} edges; "
            f"licence: {self.licence}; checksum: {checksum}{'; embedded' if self.embedded else ''}"
        )


DATASETS = (
    KnownDataset(
        name="codex-s",
        aliases=("codexs", "codex-small"),
        nodes=2_034,
        relations=42,
        edges=(32_888, 1_827, 1_828),
        licence="MIT",
        urls={split: f"{_CODEX}/codex-s/{split}.txt" for split in _TOP_LEVEL},
        sha256={
            "train": "64f93b7f314f3936a6f65739721429db3f6a7c8f5a1e1104ec3bb544f7434f59",
            "valid": "3831c0e57daef03c3a18cdd1a72e370b496f696c5218883d35c7d2ab8a6a772c",
            "test": "27127fcb34688c4778e88a39ef3c9b540807da846021e9d9685660ac1838aca1",
        },
        embedded=True,
    ),
    KnownDataset(
        name="codex-m",
        aliases=("codexm", "codex-medium"),
        nodes=17_050,
        relations=51,
        edges=(185_584, 10_310, 10_311),
        licence="MIT",
        urls={split: f"{_CODEX}/codex-m/{split}.txt" for split in _TOP_LEVEL},
    ),
    KnownDataset(
        name="codex-l",
        aliases=("codexl", "codex-large"),
        nodes=77_951,
        relations=69,
        edges=(551_193, 30_622, 30_622),
        licence="MIT",
        urls={split: f"{_CODEX}/codex-l/{split}.txt" for split in _TOP_LEVEL},
    ),
    KnownDataset(
        name="fb15k",
        nodes=14_951,
        relations=1_345,
        edges=(483_142, 50_000, 59_071),
        licence="CC BY 2.5 (Freebase)",
        urls={"archive": f"{_EVEREST}fb15k.tgz"},
        members={split: f"FB15k/freebase_mtr100_mte100-{split}.txt" for split in _TOP_LEVEL},
    ),
    KnownDataset(
        name="fb15k-237",
        aliases=("fb15k237",),
        nodes=14_541,
        relations=237,
        edges=(272_115, 17_535, 20_466),
        licence="CC BY 2.5 (derived from Freebase)",
        urls={"archive": f"{_CONVE}/FB15k-237.tar.gz"},
        members=_TOP_LEVEL,
        sha256={
            "train": "6e4c2782169af21e9743f3b1d200886f5d595bf6bc504ec1351720949c5cdfae",
            "valid": "cf6309010852f6a8d47a45df830a426415d1ee6f7a3970a8376ff1fb81db4a5c",
            "test": "5711cf41623ceb4eacc50eb6108a3ca6565c7492e3caaf82a3e355cc660d1574",
        },
    ),
    KnownDataset(
        name="wn18",
        aliases=("wordnet18",),
        nodes=40_943,
        relations=18,
        edges=(141_442, 5_000, 5_000),
        licence="WordNet 3.0 licence",
        urls={"archive": f"{_EVEREST}wordnet-mlj12.tar.gz"},
        members={split: f"wordnet-mlj12/wordnet-mlj12-{split}.txt" for split in _TOP_LEVEL},
        sha256={
            "train": "24c9b02dc57d3ae8ca8467ce355995edee7be8eddc3bd070ee34d3c6fc3c95eb",
            "valid": "13347bfb5e17d1cae003e0bfe29b4716d3ab748e8cfb6af997138d37da3a51dc",
            "test": "d22c19d176d4ba6a6f0d0c6bfce39ab3c16e3b20e1df6f9efe0d9ed86542fa10",
        },
    ),
    KnownDataset(
        name="wn18rr",
        aliases=("wordnet18rr",),
        nodes=40_943,
        relations=11,
        edges=(86_835, 3_034, 3_134),
        licence="WordNet 3.0 licence",
        urls={"archive": f"{_CONVE}/WN18RR.tar.gz"},
        members=_TOP_LEVEL,
    ),
    KnownDataset(
        name="yago3-10",
        aliases=("yago310", "yago3"),
        nodes=123_182,
        relations=37,
        edges=(1_079_040, 5_000, 5_000),
        licence="CC BY 3.0 (YAGO3)",
        urls={"archive": f"{_CONVE}/YAGO3-10.tar.gz"},
        members=_TOP_LEVEL,
    ),
    KnownDataset(
        name="wikidata5m",
        nodes=4_594_485,
        relations=822,
        edges=(20_614_279, 5_163, 5_133),
        licence="CC0 (Wikidata)",
        urls={"archive": "https://zenodo.org/record/5546383/files/wikidata5m_transductive.tar.gz"},
        members={split: f"wikidata5m_transductive_{split}.txt" for split in _TOP_LEVEL},
    ),
    KnownDataset(
        name="freebase86m",
        aliases=("freebase", "freebase-86m"),
        nodes=86_054_151,
        relations=14_824,
        edges=(304_727_650, 16_929_318, 16_929_308),
        licence="CC BY 2.5 (Freebase)",
        urls={"archive": "https://data.dgl.ai/dataset/Freebase.zip"},
        members={split: f"Freebase/{split}.txt" for split in _TOP_LEVEL},
        read=ReadOptions(columns=("0", "2", "1")),  # head, tail, relation
    ),
    KnownDataset(
        name="ogbl-wikikg2",
        aliases=("wikikg2",),
        nodes=2_500_604,
        relations=535,
        edges=(16_109_182, 429_456, 598_543),
        licence="CC0 (Wikidata)",
        urls={"archive": "https://snap.stanford.edu/ogb/data/linkproppred/wikikg-v2.zip"},
        obstacle="its splits are Python pickles, which are never opened here (a pickle can run any code); save head, "
        "relation and tail of each as an array [edges, 3] in train.npy, valid.npy and test.npy with the ogb package "
        "and name that folder with --from",
    ),
    KnownDataset(
        name="livejournal",
        aliases=("soc-livejournal1", "soc-livejournal"),
        nodes=4_847_571,
        relations=0,
        edges=(68_993_773,),
        licence="not stated (SNAP)",
        urls={"all": "https://snap.stanford.edu/data/soc-LiveJournal1.txt.gz"},
    ),
    KnownDataset(
        name="twitter-2010",
        aliases=("twitter", "twitter2010"),
        nodes=41_652_230,
        relations=0,
        edges=(1_468_364_884,),
        licence="not stated (SNAP; Kwak et al. 2010)",
        urls={"all": "https://snap.stanford.edu/data/twitter-2010.txt.gz"},
        read=ReadOptions(delimiter=" "),
    ),
)


def _names() -> dict[str, KnownDataset]:
    return {name: dataset for dataset in DATASETS for name in (dataset.name, *dataset.aliases)}


def is_known(name: str) -> bool:
    """Whether the registry has a data set of this name or alias, whatever the case."""
    return name.lower() in _names()


def describe() -> str:
    """A table of all data sets: name, sizes, licence, checksum, address."""
    rows = [("name", "nodes", "edges", "licence", "checksum", "address")]
    for one in DATASETS:
        checksum = "verified" if one.sha256 else "not verified"
        address = next(iter(one.urls.values()))
        source = f"comes with marius_oac; {address}" if one.embedded else address
        rows.append((one.name, f"{one.nodes:,}", f"{sum(one.edges):,}", one.licence, checksum, source))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = (1, 2)
    cells = (
        [
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    )
    return "\n".join("  ".join(row).rstrip() for row in cells)


def find_dataset(name: str) -> KnownDataset:
    """The data set of this name or alias.

    Raises:
        InputError: there is none; says which names are near.
    """
    names = _names()
    if name.lower() in names:
        return names[name.lower()]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    meant = list(dict.fromkeys(names[match].name for match in near))
    hint = f"did you mean {' or '.join(meant)}?" if meant else f"known: {', '.join(d.name for d in DATASETS)}"
    raise InputError(f"no such file, and no known data set of that name; {hint}", name)


def locate(dataset: KnownDataset, folder: Path) -> dict[str, Path]:
    """The data set's files in a folder, by split, checksums verified where there are any.

    A split's file may have its name in the archive, its address's name, or be called train.txt, train.tsv, train.csv
    (also .gz), train.parquet or train.npy.

    Raises:
        InputError: the folder or a file is missing, or a checksum differs.
    """
    if not folder.is_dir():
        raise InputError("no such folder", folder)
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


def verify(dataset: KnownDataset, split: str, path: Path) -> None:
    """Raises InputError where the registry knows the split's checksum and this text file's differs."""
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
