"""Small made-up folders of the layout that OGB's package unpacks, one for each kind of its sets."""

import gzip
from pathlib import Path

import numpy as np
import torch

NODES, RELATIONS, K = 60, 3, 7
TYPES = {"protein": 25, "drug": 20, "disease": 15}
SIZES = {"train": 300, "valid": 40, "test": 30}
SETS = {
    "ogbl-wikikg2": ("time", "triples"),
    "ogbl-biokg": ("random", "typed"),
    "ogbl-citation2": ("time", "sources"),
    "ogbl-collab": ("time", "pairs"),
    "ogbl-ddi": ("target", "pairs"),
    "ogbl-ppa": ("throughput", "pairs"),
}
SAVED = ({}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False})
"""Ways of torch.save."""


def splits_of(kind: str, seed: int = 0) -> dict[str, dict]:
    """What the files of a kind hold: arrays as OGB calls them, int64."""
    random = np.random.default_rng(seed)
    return {split: _split(kind, random, size, split != "train") for split, size in SIZES.items()}


def _split(kind: str, random, size: int, evaluated: bool) -> dict:
    if kind == "pairs":
        found = {"edge": random.integers(0, NODES, (size, 2))}
        return found | ({"edge_neg": random.integers(0, NODES, (120, 2))} if evaluated else {})
    if kind == "sources":
        found = {"source_node": random.integers(0, NODES, size), "target_node": random.integers(0, NODES, size)}
        return found | ({"target_node_neg": random.integers(0, NODES, (size, K))} if evaluated else {})
    found = {}
    for end in ("head", "tail"):
        types = random.choice(list(TYPES), size).tolist()
        limits = np.array([TYPES[each] for each in types] if kind == "typed" else [NODES] * size)
        found[end] = random.integers(0, limits)
        if kind == "typed":
            found[f"{end}_type"] = types
        if evaluated:
            found[f"{end}_neg"] = random.integers(0, limits[:, None], (size, K))
    relations = random.integers(0, RELATIONS, size)
    relations[:RELATIONS] = np.arange(RELATIONS)
    return found | {"relation": relations}


def write_ogb_folder(folder: Path, name: str, splits: dict[str, dict] | None = None, **saved) -> Path:
    """The folder of a set; `saved` are torch.save's."""
    split, kind = SETS[name]
    place = folder / "split" / split
    place.mkdir(parents=True)
    for part, content in (splits or splits_of(kind)).items():
        torch.save(content, place / f"{part}.pt", **saved)
    (folder / "raw").mkdir()
    if kind == "typed":
        text, file = f"{','.join(TYPES)}\n{','.join(map(str, TYPES.values()))}\n", "num-node-dict.csv.gz"
    else:
        text, file = f"{NODES}\n", "num-node-list.csv.gz"
    (folder / "raw" / file).write_bytes(gzip.compress(text.encode()))
    return folder
