"""A configuration for a click log that is known by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.formats import open_log
from marius_oac.data.logs.known import WHOLE, KnownLog
from marius_oac.data.logs.sample import ROWS
from marius_oac.data.logs.split import check_split, split_log
from marius_oac.errors import InputError
from marius_oac.prepare.init.log import LogRequest, sample_of, try_rows
from marius_oac.prepare.init.yaml_text import plain


def known_log(log: KnownLog, sources: Sequence[str], request: LogRequest) -> tuple[str, list[str]]:
    """The configuration's text, checked by reading the first rows with it, and notes. Writes the splits, if requested.

    Args:
        log: which one.
        sources: the folder that has its files.

    Raises:
        InputError: there is not one folder; a file or a column is missing; a row is wrong; an option is given that such
            a log does not need; the folder of the splits exists.
    """
    if len(sources) != 1:
        raise InputError("name the folder with its files: marius-oac init NAME FOLDER", log.name)
    if request != LogRequest(split=request.split):
        raise InputError("its label and delimiter are known: without --label, --positive and --delimiter", log.name)
    splits = log.locate(Path(sources[0]))
    notes = [f"{log.name}: {log.about}", f"licence: {log.licence}", f"published AUC: {log.published}"]
    if WHOLE in splits:
        splits = {"train": splits[WHOLE]}
        if request.split is None:
            notes.append("one file, all of which is trained on; --split FOLDER makes one to validate and one to test")
    elif request.split is not None:
        raise InputError(f"{log.name} has its splits", "--split")
    config = _with_files(log, splits)
    data = CtrConfig.build(config).data
    for path in [path for paths in splits.values() for path in paths]:
        open_log(path, data, with_labels=True)
    try_rows(data, splits["train"][0], ROWS)
    if request.split is not None:
        header = not data.columns
        plan = check_split(splits["train"][0], "csv", header, request.split, request.fractions)
        if plan is not None:
            config = _with_files(log, {split: [path] for split, path in split_log(plan).items()})
    return _text(log, config), notes


def _with_files(log: KnownLog, splits: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """The configuration with files. Columns that a file's first line has beside those that are used are ignored."""
    files = {split: [str(path) for path in paths] for split, paths in splits.items()}
    first = {split: paths[0] if len(paths) == 1 else paths for split, paths in files.items()}
    columns = {**first, **log.config["data"]}
    config = {"task": "ctr", **log.config, "data": columns}
    data = CtrConfig.build(config).data
    if not data.columns:
        used = {each.name for each in data.numeric} | {each.name for each in data.features()}
        used |= {data.label.column, *data.ignored}
        others = [name for name in sample_of(splits["train"][0], ",").names if name not in used]
        if others:
            columns["ignored"] = [*data.ignored, *others]
    return config


class _Dumper(yaml.SafeDumper):
    """Writes each value anew: the registry shares some."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(log: KnownLog, config: Mapping[str, Any]) -> str:
    head = [f"{log.name}: {log.about}", f"Licence: {log.licence}. {log.address}", f"Published AUC: {log.published}"]
    body = yaml.dump(dict(config), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110)
    return "".join(f"# {plain(line)}\n" for line in head) + body
