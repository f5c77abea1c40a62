"""The docs say what the code does."""

import re
from pathlib import Path

import pytest

from marius_oac.config.cluster import ClusterConfig
from marius_oac.config.link_prediction import Config
from tests.layers import LAYERS

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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_sections_that_a_page_links_are_there(page):
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text("utf-8"))
    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []


def anchors(page):
    """What GitHub makes of a page's headings: lower case, spaces as hyphens, no punctuation."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", text, flags=re.M)]
    return {title.strip().replace(" ", "-") for title in titles}


def test_anchors_are_those_of_headings(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `two`, three: a.b-c\n```\n# a comment\n```\ntext # no heading\n", "utf-8")
    assert anchors(page) == {"one-two-three-ab-c"}


def test_the_design_page_has_the_layers():
    rows = re.findall(r"^\| (`.+?`) \| ", (ROOT / "docs" / "design.md").read_text("utf-8"), flags=re.M)
    assert [tuple(re.findall(r"`(\w+)`", row)) for row in rows] == [tuple(sorted(line)) for line in reversed(LAYERS)]


def test_pages_name_files():
    assert sum(len(re.findall(r"`[\w/.-]+\.py`", page.read_text("utf-8"))) for page in PAGES) > 50
