"""Executes the notebooks: `python -m docs.making.notebooks [NAME ...]`. An error in a cell ends it with its traceback.

Sources are `docs/notebooks/*.py` in jupytext's percent format, which Jupyter opens as notebooks with jupytext, and
Python runs as programs. Each is executed in an empty folder. `build/notebooks` has its page with texts and plots, and
the notebook itself, to download.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "docs" / "notebooks"
OUT = ROOT / "build" / "notebooks"
PLOTS = """
import warnings, matplotlib, matplotlib_inline.backend_inline as inline
inline.set_matplotlib_formats("svg")
warnings.filterwarnings("ignore", "IProgress not found")
grey = "#7f879a"
matplotlib.rcParams.update({
    "figure.figsize": (6.4, 3.2), "savefig.transparent": True, "figure.facecolor": "none", "axes.facecolor": "none",
    "svg.hashsalt": "notebooks",
    **{name: grey for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")},
})
"""
"""Plots that can be read on a light page and on a dark one."""
SECONDS = 600
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def execute(source: Path) -> NotebookNode:
    """The notebook with its outputs."""
    notebook = jupytext.read(source)
    notebook.metadata.setdefault("kernelspec", {"name": "python3", "display_name": "Python 3", "language": "python"})
    with tempfile.TemporaryDirectory() as folder:
        hidden = nbformat.v4.new_code_cell(PLOTS)
        notebook.cells.insert(0, hidden)
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS, resources=resources, extra_arguments=["--log-level=40"]).execute()
        notebook.cells.remove(hidden)
    return notebook


def write(notebook: NotebookNode, name: str, out: Path) -> None:
    """Its page, its plots, and the notebook itself."""
    nbformat.write(notebook, out / f"{name}.ipynb")
    parts, plots = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        said = ""
        for output in [*cell.outputs, {}]:
            data = output.get("data", {})
            if text := output.get("text"):
                said += text
                continue
            shown = printed(said), printed("" if "image/svg+xml" in data else data.get("text/plain", ""))
            parts += [f"```text\n{text}\n```" for text in shown if text]
            said = ""
            if plot := data.get("image/svg+xml"):
                plots += 1
                (out / f"{name}-{plots}.svg").write_text(plot, "utf-8")
                parts.append(f"![Plot of the cell above]({name}-{plots}.svg)")
    parts.insert(1, f"*Executed when this page was built. [The notebook]({name}.ipynb) to download.*")
    (out / f"{name}.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def printed(text: str) -> str:
    """What a terminal shows in the end: lines that are written over are left out."""
    lines = [_TERMINAL.sub("", line).rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


def main(names: list[str]) -> None:
    """All notebooks, or those with these names."""
    if not names:
        shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    for source in sorted(SOURCES.glob("*.py")):
        if not names or source.stem in names:
            write(execute(source), source.stem, OUT)


if __name__ == "__main__":
    main(sys.argv[1:])
