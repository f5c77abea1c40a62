"""Small click logs whose batches all conflict, and configurations that train on them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.generate.log import LogSpec, write_day
from marius_oac.config.link_prediction import Config

USERS, ITEMS, TAGS = 40, 30, 12
HISTORY = {"name": "history", "vocabulary": "item", "max_values": 4}


def small_log(path: Path, rows: int = 300, seed: int = 0, new: int = 0) -> Path:
    """Two categorical columns, one shared with a history, tags and a number; clicks follow hidden factors of the ids.

    `new` shifts the users, so that a later day's log has keys that an earlier one's has not.
    """
    generator = np.random.default_rng(seed)
    taste = np.random.default_rng(7)
    user_factors, item_factors = taste.normal(size=(USERS + 1000, 3)), taste.normal(size=(ITEMS, 3))
    users = new + (generator.zipf(1.4, rows) - 1) % USERS
    items = (generator.zipf(1.3, rows) - 1) % ITEMS
    number = generator.normal(size=rows).astype(np.float32)
    logits = 1.5 * (user_factors[users] * item_factors[items]).sum(1) + 0.5 * number
    label = (generator.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.int8)
    tags = [generator.integers(TAGS, size=generator.integers(0, 4)).tolist() for _ in range(rows)]
    history = [((generator.zipf(1.3, generator.integers(0, 6)) - 1) % ITEMS).tolist() for _ in range(rows)]
    columns = {
        "label": pa.array(label),
        "number": pa.array(number),
        "user": pa.array(users),
        "item": pa.array(items),
        "tags": pa.array(tags, pa.list_(pa.int64())),
        "history": pa.array(history, pa.list_(pa.int64())),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def generated_days(folder: Path, examples: int) -> dict:
    """Writes a day of so many examples and 1,000 of the next; returns a tree to train on one and test on the other."""
    spec = LogSpec(categorical=4, numeric=3, keys=3000, skew=1.05)
    write_day(folder / "day.parquet", 0, examples, spec)
    write_day(folder / "next.parquet", 1, 1000, spec)
    files = {"train": str(folder / "day.parquet"), "test": str(folder / "next.parquet")}
    return {
        "task": "ctr",
        "threads": 1,
        "device": "cpu",
        "data": files | spec.schema(),
        "keys": {"capacity": 4000},
        "model": {"network": "deepfm", "dimension": 4, "hidden": [16]},
    }


def ctr_config(train, *overrides: str, network: str = "deepfm", **splits) -> Config:
    """Batches of 32 examples; steps large enough for staleness to change bits."""
    tree = {
        "task": "ctr",
        "device": "cpu",
        "threads": 1,
        "data": {
            "train": [str(path) for path in (train if isinstance(train, list) else [train])],
            **{split: str(path) for split, path in splits.items()},
            "numeric": ["number"],
            "categorical": ["user", "item"],
            "multi_valued": [{"name": "tags", "pooling": "mean"}],
            **({"sequences": [HISTORY]} if network in ("dien", "youtubednn") else {"ignored": ["history"]}),
        },
        "model": {"network": network, "dimension": 4, "hidden": [8, 4], "bottom": [8], "init_scale": 0.3}
        | ({"target": "item"} if network == "dien" else {}),
        "training": {"batch_size": 32, "epochs": 2, "optimizer": {"learning_rate": 0.2}},
    }
    return Config.build(tree, overrides)
