"""The docs say what the code does."""

import re
from pathlib import Path

import pytest

from marius_oac.config.cluster import ClusterConfig
from marius_oac.config.link_prediction import Config

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]

FILES = [path.relative_to(ROOT).as_posix() for folder in ("marius_oac", "tests", "benchmarks", "examples")
         for path in (ROOT / folder).rglob("*.py")]  # fmt: skip


def test_the_table_of_keys_is_the_configs_own():
    for task in ("graph", "node_classification", "ctr"):
        assert Config.of_task(task).describe() in (ROOT / "docs" / "config.md").read_text("utf-8")


def test_examples_are_valid_configs():
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        (ClusterConfig if path.name.endswith("_nodes.yaml") else Config).load(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_that_a_page_names_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    modules, links = re.findall(r"`([\w/.-]+\.py)`", text), re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [name for name in modules if not any(f"/{path}".endswith(f"/{name}") for path in FILES)]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_pages_name_files():
    assert sum(len(re.findall(r"`[\w/.-]+\.py`", page.read_text("utf-8"))) for page in PAGES) > 50
