"""What the site has beside the pages of `docs`: the reference of commands and data sets, from the code; benchmarks,
examples and executed notebooks. `mkdocs.yml` names this file.

Links are written as they work in the repository, from file to file. Here those that leave `docs` are made to fit the
site, where the folders of the repository lie beside the pages of `docs`.
"""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from marius_oac.cli.commands import _parser as make_parser
from marius_oac.data.logs.known import describe_datasets

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "build" / "notebooks"
DATASETS = "# Data sets by name\n\n`marius-oac datasets` prints:\n\n```text\n{}\n```\n"
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]+)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what does not lie in `docs`, and what is generated."""
    for path in copied():
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted(NOTEBOOKS.glob("*")):
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
    for name, text in generated().items():
        files.append(File.generated(config, name, content=text))
    return files


def copied() -> Iterator[Path]:
    """Files of other folders that pages link to: texts of benchmarks and examples."""
    yield from (ROOT / name for name in ROOT_PAGES)
    yield from sorted((ROOT / "benchmarks").rglob("*.md"))
    yield from sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".yaml"))
    yield ROOT / "marius_oac" / "nodes" / "transport" / "handshake.py"


def generated() -> dict[str, str]:
    """Pages by name."""
    return {
        "reference/commands.md": commands(),
        "reference/datasets.md": DATASETS.format(describe_datasets()),
        "examples/README.md": examples(),
    }


def commands() -> str:
    """Every command with its arguments, as `--help` has them."""
    [chosen] = (each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    parts = ["# Commands\n\n`marius-oac COMMAND --help` says the same in the terminal. Exit codes: "
             "[checkpoints](../checkpoints.md#signals-streams-exit-codes).\n"]  # fmt: skip
    for name, parser in chosen.choices.items():
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        rows = [row(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        table = ["| argument | meaning |", "|---|---|", *rows] if rows else []
        parts.append(
            "\n".join([f"## {name}", "", plain(parser.description), "", "```text", usage, "```", "", *table, ""])
        )
    return "\n".join(parts)


def row(action: argparse.Action) -> str:
    """Of the table of a command's arguments."""
    metavar = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    takes = "" if action.nargs == 0 else f" {metavar}"
    name = ", ".join(action.option_strings) + takes if action.option_strings else str(action.metavar or action.dest)
    return f"| `{name}`".replace("|", "\\|").replace("\\|", "|", 1) + f" | {plain(action.help)} |"


def plain(text: str | None) -> str:
    """Help as argparse shows it, in a cell of a table."""
    return (text or "").replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")


def examples() -> str:
    """The files of `examples`, with what each one's first line says."""
    parts = [
        "# Examples\n\nConfigurations and programs of the folder `examples`.\n",
        "| file | what it is |",
        "|---|---|",
    ]
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in (".py", ".yaml"):
            name, first = path.relative_to(ROOT / "examples").as_posix(), path.read_text("utf-8").splitlines()[0]
            parts.append(f"| [{name}]({name}) | {plain(first.lstrip('#').strip().strip(chr(34)))} |")
    return "\n".join([*parts, ""])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they work in the site. Blocks of code stay."""
    of = page.file.src_uri
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.S | re.M)
    parts[::2] = [
        _LINK.sub(lambda found: found[1] + in_site(of, found[2], files) + found[3], part) for part in parts[::2]
    ]
    return "".join(parts)


def in_site(page: str, link: str, files: Files) -> str:
    """A link of a page to a file of the repository, as the site has it. Both are named by their places.

    `page` is one of `docs`, named within it, or one of those that were copied, named within the repository.
    """
    folder = posixpath.dirname(page)
    outside = page in ROOT_PAGES or page.startswith("benchmarks/")
    target = posixpath.normpath(posixpath.join(folder if outside else posixpath.join("docs", folder), link))
    place = target.removeprefix("docs/")
    if place.startswith("notebooks/") and place.endswith(".py"):
        place = place.removesuffix(".py") + ".md"  # as it was executed
    if files.get_file_from_path(place) is None and files.get_file_from_path(f"{place}/README.md"):
        place += "/README.md"
    return posixpath.relpath(place, folder or ".")
