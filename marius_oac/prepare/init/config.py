"""`marius-oac init`: writes a first configuration for a click log or a graph.

Everything in it is guessed from the first rows, and marked as a guess. The first rows are then read with the
configuration, as training would, so that training can start with it. If something can't be guessed, the error lists the
choices.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marius_oac.config.errors import parse
from marius_oac.config.task import build_config
from marius_oac.data.layout import MANIFEST
from marius_oac.data.logs.guess_label import has_clicks, looks_like_edges
from marius_oac.data.logs.known import find_log
from marius_oac.data.reading.edge_arrays import ARRAYS
from marius_oac.data.reading.readers import check_readable
from marius_oac.data.reading.sources import check_together, paths_of
from marius_oac.errors import InputError
from marius_oac.prepare.dgl.csv_folders import META
from marius_oac.prepare.init.graph import begins_as_edges_do, known_graph, one_to_look_at, raw_graph
from marius_oac.prepare.init.known_log import known_log
from marius_oac.prepare.init.log import LogRequest, first_log, sample_of
from marius_oac.runtime.console import answer, logger, report
from marius_oac.runtime.files.atomic import check_place, disk_errors, make_folder, unfinished, write_flushed


@dataclass(frozen=True, kw_only=True)
class InitRequest:
    """The data to write a configuration for, and what is known of them.

    Attributes:
        sources: files, folders of files or patterns, of a click log or of edges; a prepared graph's folder or an
            embedded one's name; or a known click log's name and the folder of its files.
        out: the file to write; None: standard output.
        is_graph: whether they are a graph, and not a click log; None: guessed, with a message.
        columns: of a graph's file: names or numbers of the columns, as `ReadOptions.columns`.
        log: what is known of a click log.
    """

    sources: Sequence[str]
    out: Path | None = None
    is_graph: bool | None = None
    columns: tuple[str, ...] | None = None
    log: LogRequest = LogRequest()

    @property
    def about_a_log(self) -> bool:
        """Whether an option is given that only click logs have."""
        return self.log != LogRequest(delimiter=self.log.delimiter)


def init(request: InitRequest) -> None:
    """Writes a configuration with comments, and notes about it to standard error.

    Raises:
        InputError: a file can't be read or is no log or graph; the label can't be guessed; `out`, or the folder of the
            splits, exists. Nothing is written then.
    """
    if request.out is not None:
        check_place(request.out)
    if request.out is not None and os.path.lexists(request.out):
        raise InputError("exists already; choose another --out or remove it", request.out)
    text, notes = _described(request)
    for note in notes:
        logger.warning(note)
    if request.out is None:
        answer(text.rstrip("\n"))
        return
    _write_new(request.out, text)
    report(f"{request.out}: look through it; to train: marius-oac train {request.out}")


def _described(request: InitRequest) -> tuple[str, list[str]]:
    """The configuration's text, which was checked by parsing it, and notes."""
    name = str(request.out or "CONFIG.yaml")
    single = len(request.sources) == 1
    source = request.sources[0]
    if request.columns and (request.is_graph is False or request.about_a_log):
        raise InputError("names the ends of a graph's edges; the other options are for a click log", "--columns")
    log = find_log(source)
    if log is not None and request.is_graph is not True and not request.columns and not os.path.lexists(source):
        return _read_back(*known_log(log, request.sources[1:], request.log))
    known = single and not request.columns and _is_known_graph(source)
    if known and request.is_graph is not False and not request.about_a_log:
        if os.path.exists(Path(source) / META) or Path(source).suffix == ".bin":
            raise InputError("a graph of dgl's: prepare it first (marius-oac prepare), then init its folder", source)
        return _read_back(known_graph(source), [])
    files = [path for pattern in request.sources for path in paths_of(pattern)]
    for path in files:
        check_readable(path, may_be_empty=len(files) > 1)
    graph = True if request.columns else request.is_graph
    notes: list[str] = []
    if graph is None and not request.about_a_log and single:
        graph, notes = _looks_like_a_graph(one_to_look_at(files), request.log.delimiter)
    if graph:
        check_together(files)
        text, more = raw_graph(request.sources, files, request.log.delimiter, request.columns)
    else:
        text, more = first_log(files, request.log, name)
    return _read_back(text, [*notes, *more])


def _is_known_graph(source: str) -> bool:
    """Whether a source is a prepared graph, a folder or file of dgl, or a data set's name."""
    if not os.path.lexists(source):
        return not Path(source).suffix and not set(source) & {"*", "?", "[", os.sep}
    told = any(os.path.exists(Path(source) / name) for name in (MANIFEST, META))
    return told or Path(source).suffix == ".bin"


def _looks_like_a_graph(path: Path, delimiter: str | None) -> tuple[bool, list[str]]:
    """Whether a file holds edges, and notes about that guess."""
    if path.suffix.lower() in ARRAYS or begins_as_edges_do(path):
        return True, []
    sample = sample_of(path, delimiter)
    if looks_like_edges(sample):
        return True, [f"{path} is taken for the edges of a graph (--task ctr: a click log)"]
    return False, [] if has_clicks(sample) else [f"{path} is taken for a click log (--task graph: edges)"]


def _read_back(text: str, notes: list[str]) -> tuple[str, list[str]]:
    tree, lines = parse(text, "the configuration")
    build_config(tree, source="the configuration", lines=lines)
    return text, notes


def _write_new(path: Path, text: str) -> None:
    """Writes a new file, which is complete or doesn't exist."""
    temporary = unfinished(path)
    with disk_errors(path):
        make_folder(path.parent)
        try:
            write_flushed(temporary, text.encode())
            os.link(temporary, path)
        except FileExistsError:
            raise InputError("came into being meanwhile; nothing was changed", path) from None
        finally:
            temporary.unlink(missing_ok=True)
