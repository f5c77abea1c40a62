"""What pages show can be run, and is what the code says."""

import ast
import re
from importlib import import_module

import pytest

import marius_oac
import marius_oac.torch as mt
from docs.making import pictures
from tests.docs.blocks import Block, blocks, run
from tests.house.test_docs import ROOT

DOCS = ROOT / "docs"
USERS = [ROOT / "README.md", DOCS / "index.md", *sorted((DOCS / "guides").glob("*.md")),
         *sorted((DOCS / "concepts").glob("*.md")),
         *(DOCS / f"{name}.md" for name in ("own_loop", "own_loop_examples", "tune", "report", "config")),
         DOCS / "reference" / "python.md"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("page", USERS, ids=lambda page: page.stem)
def test_every_block_of_a_users_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = [block for block in blocks(page.read_text("utf-8")) if block.kind in ("bash", "python", "yaml")]
    assert run(page) == sum(not block.why_not for block in wanted)


PAGE = """text
```bash
exit 3
```
<!-- not run: why -->
```bash
true
```
```yaml title="a.yaml"
a: 1
```
<!-- run
b = 2
-->
"""


def test_blocks_are_found_with_what_is_said_about_them():
    assert [*blocks(PAGE)] == [
        Block("bash", "exit 3\n", "", "", 2), Block("bash", "true\n", "", "why", 5),
        Block("yaml", "a: 1\n", "a.yaml", "", 9), Block("python", "b = 2\n", "", "", 12),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), [
    ("```bash\nexit 3\n```\n", r"page.md:1: 'exit 3' ends with 3"),
    ("\n```bash\nmarius-oac train none.yaml\n```\n", "page.md:2: .* ends with 2"),
    ("```\nmarius-oac\n```\n", "page.md:1: a block without a language"),
    ("```yaml\na: 1\n```\n", "page.md:1: yaml is neither run nor written"),
    ("```python\nassert 1 == 2\n```\n", "assert 1 == 2"),
])  # fmt: skip
def test_a_block_that_fails_is_named(text, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(text, "utf-8")
    with pytest.raises(AssertionError, match=says if "assert" not in says else None):
        run(tmp_path / "page.md")


def test_the_pictures_are_those_of_the_program():
    drawn = {name: str(draw()) for name, draw in pictures.PICTURES.items()}
    assert drawn == {name: (pictures.FIGURES / f"{name}.svg").read_text("utf-8") for name in drawn}


def test_messages_of_troubleshooting_are_those_of_the_code():
    code = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text("utf-8")) for path in ROOT.glob("marius_oac/**/*.py"))
    code = re.sub(r"\{[^{}]*\}", "...", code)
    titles = re.findall(r"^### (.+)$", (DOCS / "guides" / "troubleshooting.md").read_text("utf-8"), flags=re.M)
    parts = [part for title in titles for part in re.split(r"\s*\(?\.\.\.\)?[,:;]?\s*", title) if len(part) > 4]
    assert len(titles) > 20 and [part for part in parts if part not in code] == []


def test_the_page_of_python_has_every_public_name():
    page = (DOCS / "reference" / "python.md").read_text("utf-8")
    named = set(re.findall(r"^::: \S+\.(\w+)$", page, flags=re.M)) | {"Config"}
    assert {*marius_oac.__all__, *mt.__all__} - named == set()


def test_the_site_has_every_page():
    nav = set(re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), flags=re.M))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks").rglob("*.md")}
    pages |= {f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.py")}
    assert pages - nav == set()


def test_what_the_site_takes_from_the_package_is_there():
    hooks = ast.parse((DOCS / "making" / "hooks.py").read_text("utf-8"))
    taken = [(node.module, each.name) for node in hooks.body if isinstance(node, ast.ImportFrom) for each in node.names
             if node.module.startswith("marius_oac")]  # fmt: skip
    assert taken and all(hasattr(import_module(module), name) for module, name in taken)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
