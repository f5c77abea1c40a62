"""The docs say what the code does."""

from pathlib import Path

from marius_oac.config import Config
from marius_oac.config_cluster import ClusterConfig

ROOT = Path(__file__).parents[1]


def test_the_table_of_keys_is_the_configs_own():
    for task in ("graph", "node_classification", "ctr"):
        assert Config.of_task(task).describe() in (ROOT / "docs" / "config.md").read_text("utf-8")


def test_examples_are_valid_configs():
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        (ClusterConfig if path.name.endswith("_nodes.yaml") else Config).load(path)
