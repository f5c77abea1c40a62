"""Arguments of the commands that read a user's data: prepare and init."""

from __future__ import annotations

import argparse
from pathlib import Path

KINDS = {"ctr": False, "graph": True}
"""Values of `init --task`: is it a graph, and not a click log?"""


def _delimiter(text: str) -> str:
    """A delimiter as it is typed: a shell leaves `\\t` as two characters."""
    return "\t" if text == r"\t" else text


def add_prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac prepare`."""
    parser.add_argument(
        "source",
        nargs="*",
        help="edge files (.tsv, .csv, also .gz, .parquet, .npy, .npz or .pt), folders of them, or their addresses "
        "(https://, s3://, ...; 's3://bucket/edges/*.parquet'), read one after the other; DGL's .bin file or CSV "
        "folder; or name of a known data set",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="graph folder to create; node data of DGL is written there as labels.tsv (name, label, split) and "
        "features.parquet (name, features)",
    )
    for split in ("train", "valid", "test"):
        parser.add_argument(
            f"--{split}", metavar="FILE", nargs="+", help=f"edge files of the {split} split, folders or addresses"
        )
    parser.add_argument(
        "--from", dest="from_dir", type=Path, metavar="DIR", help="use the data set's files in this folder"
    )
    parser.add_argument(
        "--columns", help="column names or numbers (from 0), in the order head,relation,tail or source,destination"
    )
    parser.add_argument("--no-relations", action="store_true", help="ignore the relation column")
    parser.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="whether the first line contains column names (default: guessed, with a message)",
    )
    parser.add_argument(
        "--delimiter",
        type=_delimiter,
        help="delimiter of text files; '\\t' is a tab (default: by suffix and the first lines)",
    )
    parser.add_argument(
        "--comment", help="skip lines that begin with this character (default: #, unless these are edges)"
    )
    parser.add_argument(
        "--quotes",
        action=argparse.BooleanOptionalAction,
        help="whether names may be quoted (default: in a CSV, and where quotes stand around whole names)",
    )
    for split in ("valid", "test"):
        parser.add_argument(
            f"--{split}-fraction", type=float, help=f"fraction of the edges for the {split} split (default: 0.05)"
        )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random split (default: 0)")
    parser.add_argument(
        "--unseen",
        choices=("train", "skip", "error", "keep"),
        help="valid and test edges with names that are not in train. train: move them to train, as many as needed "
        "(default for drawn splits). skip: leave them out (default for given splits). error: refuse them. "
        "keep: keep them",
    )
    parser.add_argument(
        "--duplicates",
        choices=("keep", "drop"),
        default="keep",
        help="whether to keep or drop edges that equal an earlier one (default: keep)",
    )


def add_init(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac init`."""
    parser.add_argument(
        "source",
        nargs="+",
        help="click log (CSV, TSV, also .gz, .zst, .bz2 or .xz, Parquet or libsvm; of several files, the last one is "
        "the test set), edge files or a folder of them, graph folder, or name of a known click log (see marius-oac "
        "datasets) and its folder",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="configuration file to write (default: standard output)"
    )
    parser.add_argument(
        "--task", choices=sorted(KINDS), help="kind of data: click log or graph (default: guessed, with a message)"
    )
    parser.add_argument(
        "--columns",
        help="graph: column names or numbers (from 0), in the order head,relation,tail or source,destination",
    )
    parser.add_argument("--label", metavar="COLUMN", help="click log: label column (default: guessed)")
    parser.add_argument(
        "--positive",
        action="append",
        default=[],
        metavar="VALUE",
        help="click log: label that means 1; repeatable (default: guessed)",
    )
    parser.add_argument(
        "--delimiter", type=_delimiter, help="delimiter of text files; '\\t' is a tab (default: guessed)"
    )
    parser.add_argument(
        "--split",
        type=Path,
        metavar="FOLDER",
        help="click log of one file: split its rows at random into files in FOLDER (80 %% train, 10 %% valid, "
        "10 %% test)",
    )
