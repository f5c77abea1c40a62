"""Draws the pictures of the concepts: `python -m docs.making.pictures` writes them to `docs/figures`.

They are plain SVG and follow the reader's light or dark setting, also on their own.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "figures"
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2430 }
.small { font-size: 12px; fill: #596070 }
.strong { font-weight: 600 }
.middle { text-anchor: middle }
.box { fill: #fff; stroke: #8089a0; stroke-width: 1.2 }
.a { fill: #dbe6ff; stroke: #3b5bbf }
.b { fill: #ffe5c7; stroke: #b0651a }
.c { fill: #d8f1dc; stroke: #2f7d43 }
.d { fill: #eceef3; stroke: #8089a0 }
.bad { fill: #fbd9d9; stroke: #b33030 }
.line { fill: none; stroke: #596070; stroke-width: 1.4 }
.dashed { stroke-dasharray: 5 4 }
.head { fill: #596070 }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7ef }
.small { fill: #aab1c2 }
.box { fill: #1d2029; stroke: #7f879a }
.a { fill: #22325f; stroke: #8fa9ff }
.b { fill: #58371a; stroke: #f2ae6a }
.c { fill: #1d4628; stroke: #7fd196 }
.d { fill: #2c303b; stroke: #7f879a }
.bad { fill: #5a2323; stroke: #f08d8d }
.line { stroke: #aab1c2 }
.head { fill: #aab1c2 }
}
"""


class Drawing:
    """A picture of `width` x `height`, in pixels. `title` is what a screen reader says."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title, self.parts = (width, height), title, []

    def box(self, x: float, y: float, w: float, h: float, kind: str, text: str = "", small: str = "") -> None:
        """A box of a kind of STYLE with a text in its middle, and a smaller one below."""
        self.parts.append(f'<rect class="box {kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="5"/>')
        middle = y + h / 2 + (-3 if small else 5)
        self.text(x + w / 2, middle, text, "middle")
        self.text(x + w / 2, middle + 17, small, "middle small")

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """`y` is the line that letters stand on."""
        if text:
            self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], kind: str = "", head: bool = True) -> None:
        """Through the points."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        end = ' marker-end="url(#head)"' if head else ""
        self.parts.append(f'<path class="line {kind}" d="M{path}"{end}/>')

    def __str__(self) -> str:
        width, height = self.size
        marker = ('<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
                  'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>')  # fmt: skip
        begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
        lines = [
            begin,
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            marker,
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def overview() -> Drawing:
    """What the package does, for the first page."""
    it = Drawing(760, 262, "Batches go round between tables of rows and the device, many at a time")
    it.box(10, 20, 130, 52, "d", "graph or log", "edges, clicks")
    it.box(10, 120, 130, 120, "c", "tables of rows", "in memory")
    it.text(75, 211, "on disk", "middle small")
    it.text(75, 228, "on other nodes", "middle small")
    it.arrow((140, 46), (178, 46))
    it.box(180, 20, 90, 52, "a", "plan", "which rows")
    it.arrow((225, 72), (225, 148))
    it.arrow((140, 175), (178, 175))
    it.box(180, 150, 90, 50, "a", "read", "ahead of time")
    it.box(310, 150, 110, 50, "b", "validate", "newest values")
    it.box(450, 150, 110, 50, "b", "compute", "loss, update")
    it.box(590, 150, 90, 50, "a", "write", "new rows")
    for x, end in ((270, 308), (420, 448), (560, 588)):
        it.arrow((x, 175), (end, 175))
    it.arrow((680, 175), (710, 175), (710, 225), (142, 225))
    it.arrow((505, 150), (505, 112), (365, 112), (365, 148), kind="dashed")
    it.text(435, 102, "rows that earlier batches have just changed", "middle small")
    for n in range(4):
        it.box(310 + 66 * n, 26, 58, 40, "d", f"batch {n + 1}")
    it.text(580, 51, "in flight together", "small")
    it.text(455, 254, "the bits of one batch after the other, for any number of batches in flight", "middle strong")
    return it


def stages() -> Drawing:
    """The stages of a batch and what is between them."""
    it = Drawing(
        760, 250, "The stages of a batch: plan, settle, fetch, read, upload, validate, compute, download, write"
    )
    names = ["plan", "settle", "fetch", "read", "upload", "validate", "compute", "download", "write"]
    for n, name in enumerate(names):
        it.box(6 + 84 * n, 90, 74, 38, "b" if name in ("validate", "compute") else "a", name)
        if n:
            it.arrow((84 * n - 4, 109), (84 * n + 5, 109))
    it.box(6, 20, 74, 34, "d", "files")
    it.arrow((43, 54), (43, 88))
    it.box(426, 16, 158, 36, "c", "newest rows (cache)")
    it.arrow((547, 90), (547, 54))
    it.arrow((463, 52), (463, 88))
    it.box(174, 182, 74, 38, "d", "disk")
    it.arrow((211, 182), (211, 130), kind="dashed")
    it.box(258, 182, 494, 38, "c", "tables: rows with timestamps")
    it.arrow((295, 182), (295, 130))
    it.arrow((715, 128), (715, 180))
    it.text(463, 148, "one thread: validate, then compute", "small")
    it.text(6, 205, "each other stage has", "small")
    it.text(6, 220, "threads of its own", "small")
    return it


def oac() -> Drawing:
    """Why asynchrony loses updates, and what validation does about it."""
    it = Drawing(760, 330, "Two batches that use one row: asynchronously an update is lost, with validation it is not")
    for y, name, kept in ((20, "async", False), (180, "oac", True)):
        it.text(10, y + 14, name, "strong")
        for lane, number in ((0, 1), (1, 2)):
            it.text(10, y + 50 + 46 * lane, f"batch {number}", "small")
        it.box(80, y + 30, 110, 32, "a", "read row: 5")
        it.box(250, y + 30, 130, 32, "b", "compute: 5 + 1")
        it.box(560, y + 30, 90, 32, "a", "write: 6")
        it.box(130, y + 76, 110, 32, "a", "read row: 5")
        if kept:
            it.box(395, y + 76, 110, 32, "c", "validate: 6")
            it.box(515, y + 76, 130, 32, "b", "compute: 6 + 2")
            it.box(660, y + 76, 90, 32, "a", "write: 8")
            it.arrow((380, y + 46), (450, y + 46), (450, y + 74))
            it.text(457, y + 62, "changed since", "small")
        else:
            it.box(395, y + 76, 130, 32, "b", "compute: 5 + 2")
            it.box(660, y + 76, 90, 32, "bad", "write: 7")
            it.text(555, y + 132, "the update of batch 1 is lost", "small")
    it.text(515, 312, "the same as one batch after the other", "small")
    return it


def window() -> Drawing:
    """The window of batches in flight, and what the cache holds."""
    it = Drawing(760, 220, "Batches in a row: written, in flight, waiting")
    for n in range(12):
        kind = "c" if n <= 4 else "b" if n == 6 else "a" if n <= 8 else "d"
        it.box(20 + 60 * n, 70, 52, 40, kind, str(n))
    it.arrow((286, 36), (286, 68))
    it.text(286, 28, "MFT = 4: batches 0 to 4 are in the table", "middle small")
    it.text(166, 134, "written", "middle small")
    it.text(406, 134, "in flight: read, computed, not yet written", "middle small")
    it.text(652, 134, "wait", "middle small")
    it.arrow((320, 150), (552, 150), head=False)
    it.text(436, 170, "window of in_flight = 4: batch 9 may read when batch 5 is written", "middle small")
    it.text(
        20,
        205,
        "Orange computes now. Batches 7 and 8 may have read rows that 5 or 6 change: their new rows are in the cache.",
        "small",
    )
    return it


def tiers() -> Drawing:
    """Where rows are."""
    it = Drawing(
        760, 230, "Tiers: the device has rows of the batches in flight, memory a part of the table, disk the rest"
    )
    it.box(290, 14, 180, 46, "b", "device", "rows of batches in flight")
    it.box(200, 92, 360, 46, "a", "memory", "storage.memory: pages that are needed soon")
    it.box(90, 170, 410, 46, "c", "disk", "storage.path: all pages, checksummed, direct I/O")
    it.box(560, 170, 190, 46, "d", "other nodes", "their part of the rows")
    for x, low, high in ((350, 90, 62), (260, 168, 140)):
        it.arrow((x, low), (x, high))
        it.arrow((x + 60, high), (x + 60, low))
    it.arrow((655, 168), (655, 37), (472, 37), kind="dashed")
    it.text(216, 159, "ahead", "small")
    it.text(328, 159, "what is needed last", "small")
    it.text(316, 82, "read", "small")
    it.text(420, 82, "write", "small")
    it.text(662, 110, "pull, push", "small")
    return it


def lockstep() -> Drawing:
    """Lockstep beside GBA with one slow trainer."""
    it = Drawing(
        760, 330, "Lockstep waits for the slowest trainer; GBA gives each trainer the next part when it is free"
    )
    it.text(10, 24, "sync: lockstep", "strong")
    for trainer, width in enumerate((60, 60, 160)):
        y = 36 + 34 * trainer
        it.text(10, y + 19, f"trainer {trainer}" + (" (slow)" if width > 60 else ""), "small")
        for step in range(3):
            it.box(130 + 180 * step, y, width, 26, "a", str(step))
            if width < 160:
                it.text(200 + 180 * step, y + 18, "waits", "small")
    for step in range(1, 4):
        it.arrow((120 + 180 * step, 32), (120 + 180 * step, 136), kind="dashed", head=False)
    it.text(10, 178, "gba", "strong")
    for trainer, width in enumerate((60, 60, 160)):
        y = 190 + 34 * trainer
        it.text(10, y + 19, f"trainer {trainer}" + (" (slow)" if width > 60 else ""), "small")
        for n in range(540 // (width + 6)):
            it.box(130 + (width + 6) * n, y, width, 26, "b" if width == 160 else "a")
    it.text(
        10,
        310,
        "A step is made of as many gradients as a global batch has, whoever computed them. Late ones weigh less.",
        "small",
    )
    return it


PICTURES: dict[str, Callable[[], Drawing]] = {
    "overview": overview, "stages": stages, "oac": oac, "window": window, "tiers": tiers, "lockstep": lockstep,
}  # fmt: skip

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FIGURES / f"{name}.svg").write_text(str(draw()), "utf-8")
