"""The docs say what the code does."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from marius_oac.cli.commands import main
from marius_oac.config.cluster import ClusterConfig
from marius_oac.config.link_prediction import Config
from marius_oac.config.reference import TASKS, as_json_schema, rows_of, topics
from tests.layers import LAYERS

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]

GENERATED = {ROOT / "docs" / "reference" / name for name in ("commands.md", "datasets.md")}  # docs/making/hooks.py
FILES = [path.relative_to(ROOT).as_posix() for folder in ("marius_oac", "tests", "benchmarks", "examples", "docs")
         for path in (ROOT / folder).rglob("*.py")]  # fmt: skip


def test_the_page_has_each_table_of_keys_under_its_title_and_in_order():
    parts = re.split(r"^#+ (.+)$", (ROOT / "docs" / "config.md").read_text("utf-8"), flags=re.M)
    page = [(title, text) for title, text in zip(parts[1::2], parts[2::2], strict=True) if "| key | default |" in text]
    assert [title for title, _ in page] == [topic.title for topic in topics()]
    for (_, text), topic in zip(page, topics(), strict=True):
        assert "\n".join(line for line in text.splitlines() if line.startswith("|")) == topic.table


def keys_of(topic):
    return dict(re.findall(r"^(?=\| `(\S+)` \|)(.+)$", topic.table, flags=re.M))


@pytest.mark.parametrize("task", [*TASKS, None])
def test_every_key_of_a_task_is_described_once_and_as_it_is_there(task):
    config = Config.of_task(task) if task else ClusterConfig
    tables = [keys_of(topic) for topic in topics() if task in topic.tasks or not topic.tasks and task is None]
    found = {key: row for table in tables for key, row in table.items()}
    assert found == rows_of(config) and len(found) == sum(map(len, tables))


def test_no_key_of_every_task_stands_in_the_table_of_one():
    rows = [rows_of(Config.of_task(task)) for task in TASKS]
    common = {key for key, row in rows[0].items() if all(row == other.get(key) for other in rows)}
    told = [key for topic in topics() if topic.tasks and topic.tasks != TASKS for key in keys_of(topic)]
    assert common and sorted(common & set(told)) == []


def test_a_row_names_the_values_that_its_text_does_not():
    rows = rows_of(Config)
    values = "Values: softmax, logistic, margin, self_adversarial, or FILE.py:CLASS, a part of your own. |"
    assert rows["training.loss.kind"].endswith(f"Training loss. {values}")
    assert "Values" not in rows["pipeline.mode"] and "Values" not in rows["task"]
    assert rows_of(Config.of_task("ctr"))["data.multi_valued[].separator"].startswith(
        "| `data.multi_valued[].separator` | `'\\|'` | "
    )


def test_the_command_prints_the_tables_in_the_order_of_the_page(capsys):
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert printed == "\n".join(f"{topic.title}{topic.scope}\n\n{topic.table}\n" for topic in topics()) + "\n"
    assert "\nBatches in flight (every task)\n" in printed and "\nKeys of nodes.yaml\n" in printed


def test_the_command_prints_a_section(capsys):
    assert main(["config", "training.loss"]) == 0
    title, table, *others = capsys.readouterr().out.strip().split("\n\n")
    assert title == "Batches, negatives and loss (task: graph)" and not others
    keys = [line.split("`")[1] for line in table.splitlines()[2:]]
    assert keys == ["training.loss.kind", "training.loss.margin", "training.loss.temperature"]
    assert main(["config", "seed"]) == 0
    assert "`seed`" in capsys.readouterr().out
    assert main(["config", "nodes.yaml"]) == 0
    assert capsys.readouterr().out.startswith("Keys of nodes.yaml\n")


@pytest.mark.parametrize(("asked", "says"), [
    (["trainig.loss"], "trainig.loss: there is no such key or section; did you mean 'training.loss'?"),
    (["training.los"], "did you mean 'training.loss'?"),
    (["^"], "^: there is no such key or section\n"),
    (["training", "--format", "json-schema"], "training: a JSON schema is of the whole configuration, or of nodes"),
])  # fmt: skip
def test_a_section_that_is_not_there_is_a_line(capsys, asked, says):
    assert main(["config", *asked]) == 2
    out, err = capsys.readouterr()
    assert not out and says in err and err.count("\n") == 1


def test_editors_get_a_schema_that_the_examples_fit(capsys):
    assert main(["config", "--format", "json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        if not path.name.endswith("_nodes.yaml"):
            validator.validate(yaml.safe_load(path.read_text("utf-8")))
    wrong = {"data": {"path": "codex-s"}}, {"task": "ctr", "data": {"train": "a.csv"}, "model": {"netwrk": "fm"}}
    assert validator.is_valid(wrong[0]) and not validator.is_valid(wrong[1])
    assert main(["config", "nodes.yaml", "--format", "json-schema"]) == 0
    nodes = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out))
    assert nodes.is_valid({"nodes": [{"address": "10.0.0.1"}]}) and not nodes.is_valid({"nodes": 3})


LOG = {"train": "a.csv", "label": {"column": "y", "positive": 1}, "numeric": [{"name": "n"}], "categorical": ["c"],
       "multi_valued": ["tags"], "sequences": ["history"]}  # fmt: skip
SHORT = [
    {"data": {"path": "a"}, "binding": False, "pipeline": {"workers": "auto"}, "storage": {"memory": "4GiB"}},
    {"data": {"path": "a"}, "evaluation": {"metrics": "mine.py:metric"}, "pipeline": {"workers": {"plan": 2}}},
    {"task": "ctr", "data": LOG, "model": {"network": "fm"}},
    {"nodes": [{"address": "a", "gpus": 2, "trainers": 2, "memory": "1GiB", "path": "/a", "shards": 0.5}]},
    {"nodes": [{"address": "a", "gpus": [0], "memory": 10**9, "path": ["/a", "/b"], "shards": True}]},
]


@pytest.mark.parametrize("tree", SHORT, ids=str)
def test_a_schema_has_the_short_forms(tree):
    kind = ClusterConfig if "nodes" in tree else Config.of_task(tree.get("task"))
    kind.model_validate(tree)
    schema = json.loads(as_json_schema("nodes.yaml" if kind is ClusterConfig else None))
    jsonschema.Draft202012Validator(schema).validate(tree)


def test_examples_are_valid_configs():
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        (ClusterConfig if path.name.endswith("_nodes.yaml") else Config).load(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_that_a_page_names_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    modules, links = re.findall(r"`([\w/.-]+\.py)`", text), re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [name for name in modules if not any(f"/{path}".endswith(f"/{name}") for path in FILES)]
    missing += [
        link for link in links if not (place := (page.parent / link).resolve()).exists() and place not in GENERATED
    ]
    assert missing == []


def test_the_site_has_the_modules_that_pages_link():
    """`make docs` alone would tell, which not every change has made."""
    copied = (ROOT / "docs" / "making" / "hooks.py").read_text("utf-8")
    linked = {
        link for page in PAGES for link in re.findall(r"\]\((?:\.\./)*(marius_oac/[^)#]+)", page.read_text("utf-8"))
    }
    assert {link for link in linked if repr(Path(link).name).replace("'", '"') not in copied} == set() != linked


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
