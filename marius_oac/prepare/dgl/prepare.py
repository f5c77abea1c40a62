"""`prepare` for all kinds of sources, including dgl's."""

from __future__ import annotations

import os
from pathlib import Path

from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.data.reading.remote import is_address
from marius_oac.data.reading.sources import several
from marius_oac.errors import InputError
from marius_oac.prepare.dgl.csv_folders import META, prepare_dgl_csv
from marius_oac.prepare.prepare import PreparedGraph, PrepareRequest, prepare
from marius_oac.runtime.standstill import watched


@watched()
def prepare_source(request: PrepareRequest) -> PreparedGraph:
    """Calls `prepare`, or for a source of dgl's (a .bin file, a folder with a `meta.yaml`) its converter.

    Raises:
        InputError: as `prepare`, `prepare_dgl` and `prepare_dgl_csv`; the request says how to read what dgl describes.
    """
    named = several(request.source)
    if len(named) != 1 or is_address(named[0]):
        return prepare(request)
    source = Path(named[0])
    folder = os.path.exists(source / META)  # unlike Path.exists, False for a name that is too long
    if not (folder or source.suffix == ".bin"):
        return prepare(request)
    if request.from_dir is not None or request.read != ReadOptions(relations=request.read.relations):
        raise InputError("dgl says itself what its columns are: --from, and how to read text, are for others", source)
    names = ("read", "valid_fraction", "test_fraction", "seed", "unseen", "duplicates")
    options = {name: getattr(request, name) for name in names}
    if folder:
        return prepare_dgl_csv(source, request.out, **options)
    from marius_oac.prepare.dgl.graphs import prepare_dgl  # imports torch, which takes seconds

    return prepare_dgl(source, request.out, **options)
