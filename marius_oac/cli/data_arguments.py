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
        nargs="?",
        help="a .tsv, .csv (also .gz), .parquet or .npy file, its address (https://, s3://, ...), dgl's .bin file or "
        "CSV folder, or a data set's name",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="graph folder to make; data of dgl's nodes is written there as labels.tsv (name, label, split) and "
        "features.parquet (name, features)",
    )
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", metavar="FILE", help=f"edges of the {split} split, a file or its address")
    parser.add_argument("--from", dest="from_dir", type=Path, metavar="DIR", help="take the data set's files from here")
    parser.add_argument(
        "--columns", help="names or numbers (from 0), in the order head,relation,tail or source,destination"
    )
    parser.add_argument("--no-relations", action="store_true", help="ignore the relation column")
    parser.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="whether the first line holds column names (default: guessed, with a message)",
    )
    parser.add_argument("--delimiter", type=_delimiter, help="of text files, '\\t' is a tab (default: by suffix)")
    parser.add_argument("--comment", default="#", help="lines that begin with it are skipped (default: #)")
    for split in ("valid", "test"):
        parser.add_argument(f"--{split}-fraction", type=float, help="share of a single file (default: 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="of the split (default: 0)")
    parser.add_argument(
        "--unseen",
        choices=("train", "skip", "error", "keep"),
        help="edges of valid and test with names that train lacks go to train, as many as it takes (default where "
        "splits are drawn), are left out (default where they are given), refused, or kept",
    )
    parser.add_argument(
        "--duplicates", choices=("keep", "drop"), default="keep", help="edges that equal an earlier one (default: keep)"
    )


def add_init(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `marius-oac init`."""
    parser.add_argument(
        "source",
        nargs="+",
        help="a click log (CSV, TSV, .gz, Parquet, libsvm; of several files the last one tests), a file of edges, a "
        "graph folder, or a known click log's name and the folder of its files (marius-oac datasets)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the config to write (default: standard output)")
    parser.add_argument("--task", choices=sorted(KINDS), help="click log or graph (default: guessed, and said)")
    parser.add_argument("--label", metavar="COLUMN", help="a click log: the column of labels (default: a guess)")
    parser.add_argument(
        "--positive", action="append", default=[], metavar="VALUE", help="a label that means 1 (default: a guess)"
    )
    parser.add_argument("--delimiter", type=_delimiter, help="of text files, '\\t' is a tab (default: guessed)")
    parser.add_argument(
        "--split",
        type=Path,
        metavar="FOLDER",
        help="a click log of one file: write random 80 %% of its rows as FOLDER/train, 10 %% each as valid and test",
    )
