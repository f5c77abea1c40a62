"""The oracle of preparing: lists and dictionaries, one line after the other."""

from __future__ import annotations

SPLITS = ("train", "valid", "test")


def prepare(rows: dict[str, list[tuple]], unseen: str = "skip", duplicates: str = "keep") -> dict:
    """What a graph folder must hold for these rows of names (strings or integers), by split."""
    met, repeated = set(), 0
    kept = {split: [] for split in SPLITS}
    for split in SPLITS:
        for row in rows.get(split, []):
            repeated += row in met
            if row not in met or duplicates == "keep":
                kept[split].append(row)
            met.add(row)
    known = {name for row in kept["train"] for name in (("n", row[0]), ("n", row[-1]), *_relation(row))}
    every = {name for row in met for name in (("n", row[0]), ("n", row[-1]), *_relation(row))}
    used = every if unseen == "keep" else known
    # Strings in the order of their bytes, integers in their own.
    nodes = sorted((name for kind, name in used if kind == "n"), key=_order)
    relations = sorted((name for kind, name in used if kind == "r"), key=_order)
    node_ids = {name: number for number, name in enumerate(nodes)}
    relation_ids = {name: number for number, name in enumerate(relations)}
    edges, unseen_edges = {}, {}
    for split in SPLITS:
        lacking = [row for row in kept[split] if not _names(row) <= known]
        unseen_edges[split] = len(lacking)
        chosen = kept[split] if unseen == "keep" else [row for row in kept[split] if _names(row) <= known]
        edges[split] = [
            [node_ids[row[0]], *(relation_ids[name] for _, name in _relation(row)), node_ids[row[-1]]] for row in chosen
        ]
    return {
        "nodes": [str(name) for name in nodes],
        "relations": [str(name) for name in relations],
        "edges": edges,
        "duplicates": repeated,
        "unseen_edges": unseen_edges,
        "unseen_nodes": sum(kind == "n" for kind, _ in every - known),
        "unseen_relations": sum(kind == "r" for kind, _ in every - known),
        "copies": {split: sum(row in kept["train"] for row in kept[split]) for split in SPLITS[1:]},
        "copy": next((row for split in SPLITS[1:] for row in kept[split] if row in kept["train"]), None),
    }


def prepare_one(rows: list[tuple], draw, unseen: str = "train", duplicates: str = "keep") -> dict:
    """Likewise of one file, whose n edges that are kept are in the splits `draw(n)`, indices into SPLITS."""
    kept = list(dict.fromkeys(rows)) if duplicates == "drop" else rows
    splits = list(draw(len(kept)))
    before = prepare(_by_split(kept, splits), unseen="skip")
    drawn = list(splits)
    if unseen == "train":
        seen = set().union(*(_names(row) for row, split in zip(kept, splits, strict=True) if split == 0))
        for place, row in enumerate(kept):
            if not _names(row) <= seen:
                splits[place] = 0
                seen |= _names(row)
    found = prepare(_by_split(kept, splits), "skip" if unseen == "train" else unseen)
    if unseen == "train":
        found |= {key: before[key] for key in ("unseen_nodes", "unseen_relations")}
        pairs = list(zip(drawn, splits, strict=True))
        found["unseen_edges"] = {SPLITS[index]: pairs.count((index, 0)) for index in (1, 2)}
    trained = [row for row, split in zip(kept, splits, strict=True) if split == 0]
    copied = [row for row, split in zip(kept, splits, strict=True) if split and row in trained]
    return found | {"duplicates": len(rows) - len(set(rows)), "copy": copied[0] if copied else None}


def _by_split(rows: list[tuple], splits: list[int]) -> dict[str, list[tuple]]:
    return {
        name: [row for row, split in zip(rows, splits, strict=True) if split == index]
        for index, name in enumerate(SPLITS)
    }


def _order(name):
    return name.encode() if isinstance(name, str) else name


def _relation(row: tuple) -> list[tuple]:
    return [("r", row[1])] if len(row) == 3 else []


def _names(row: tuple) -> set:
    return {("n", row[0]), ("n", row[-1]), *_relation(row)}
