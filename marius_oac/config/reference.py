"""The reference of all configuration keys: Markdown tables, one for each thing that a user may want to set.

`marius-oac config` prints them, and `docs/config.md` holds them in this order. Imports neither torch nor numba. Every
field's description is its help text.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from marius_oac.config.cluster import ClusterConfig
from marius_oac.config.errors import fields
from marius_oac.config.link_prediction import Config
from marius_oac.config.task import TaskConfig
from marius_oac.errors import InputError

NODES = "nodes.yaml"
TASKS = ("graph", "node_classification", "ctr")
_GRAPH, _CLASSES, _CTR = ((task,) for task in TASKS)
_ENCODED = (*_GRAPH, *_CLASSES)

TOPICS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Graph and decoder", _GRAPH, ("task", "data.*", "model.*", "encoder")),
    ("Batches, negatives and loss", _GRAPH,
     ("training.epochs", "training.batch_size", "training.negatives.*", "training.loss.*", "training.regularization.*",
      "training.ordering.*")),
    ("Evaluation of links", _GRAPH, ("evaluation.*",)),
    ("Labels, training and evaluation", _CLASSES,
     ("data.*", "model.*", "training.epochs", "training.batch_size", "evaluation.*")),
    ("Layers and features of an encoder", _ENCODED, ("encoder.*",)),
    ("Files and columns", _CTR, ("data.*",)),
    ("Network and keys", _CTR, ("model.*", "keys.*")),
    ("Training and evaluation on a log", _CTR,
     ("training.epochs", "training.batch_size", "training.progressive*", "training.dense_optimizer.*",
      "training.embedding_l2", "evaluation.*")),
    ("Row optimizer and early stopping", TASKS, ("training.optimizer.*", "training.early_stopping*")),
    ("Batches in flight", TASKS, ("pipeline.*",)),
    ("Rows on disk", TASKS, ("storage.*",)),
    ("Checkpoints and metrics", TASKS, ("checkpoint.*", "metrics.*", "trackers", "stall_after")),
    ("Device, threads, products and seed", TASKS, ("device", "threads", "binding", "compute.*", "seed")),
    ("Rows and modes over nodes", TASKS,
     ("nodes.packing", "nodes.parts", "nodes.mode", "nodes.mode_options.*", "nodes.switch*", "nodes.auto.*")),
    ("Dense parameters over nodes", TASKS, ("nodes.dense.*",)),
)  # fmt: skip
"""Of each topic: its title, the tasks that share its keys, and patterns of the keys."""


class Topic(NamedTuple):
    """A table of keys. `tasks`: those that have these keys, none for `nodes.yaml`."""

    title: str
    tasks: tuple[str, ...]
    table: str

    @property
    def scope(self) -> str:
        """Which tasks have these keys, in words; empty for `nodes.yaml`."""
        return " (every task)" if self.tasks == TASKS else f" (task: {', '.join(self.tasks)})" if self.tasks else ""


def topics(section: str | None = None) -> Iterator[Topic]:
    """All tables, in the order of the page; a key that several tasks share is in one of them.

    Args:
        section: only this key or section of a configuration, or `nodes.yaml`; the tables that have none of it are left
            out.
    """
    for title, tasks, patterns in TOPICS:
        found = [each for each in fields(Config.of_task(tasks[0])) if section is None or _within(each[0], section)]
        chosen = [(path, field) for path, field in found if any(fnmatchcase(path, each) for each in patterns)]
        if chosen:
            yield Topic(title, tasks, _table(chosen))
    if section in (None, NODES):
        yield Topic(f"Keys of {NODES}", (), _table(fields(ClusterConfig)))


def as_text(section: str | None = None) -> str:
    """The tables as `marius-oac config` prints them.

    Raises:
        InputError: there is no such key or section.
    """
    found = [f"{topic.title}{topic.scope}\n\n{topic.table}\n" for topic in topics(section)]
    if not found:
        known = dict.fromkeys(path for task in TASKS for path, _ in fields(Config.of_task(task)))
        sections = dict.fromkeys(path.rpartition(".")[0] for path in known)
        near = difflib.get_close_matches(section or "", [*known, *sections, NODES], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"there is no such key or section{hint}", section)
    return "\n".join(found)


def as_json_schema(section: str | None = None) -> str:
    """The JSON schema of a configuration of any task, or of nodes.yaml; editors complete and check keys by it.

    Raises:
        InputError: `section` is something else.
    """
    if section not in (None, NODES):
        raise InputError(f"a JSON schema is of the whole configuration, or of {NODES}", section)
    kind: Any = ClusterConfig if section else TaskConfig
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **TypeAdapter(kind).json_schema()}
    return json.dumps(schema, indent=2)


def _within(path: str, section: str) -> bool:
    return path == section or path.startswith((f"{section}.", f"{section}["))


def rows_of(model: type[BaseModel]) -> dict[str, str]:
    """The line of a table for each key of a configuration."""
    return {path: _row(path, field) for path, field in fields(model)}


def _table(found: Any) -> str:
    return "\n".join(("| key | default | meaning |", "|---|---|---|", *(_row(path, field) for path, field in found)))


def _row(path: str, field: FieldInfo) -> str:
    default = "required"
    if not field.is_required():
        default = f"`{yaml.safe_dump(field.default, default_flow_style=True).splitlines()[0]}`"
    cells = (f"`{path}`", default, f"{field.description}{_choices(field)}")
    return " | ".join(("", *(cell.replace("|", "\\|") for cell in cells), "")).strip()


def _choices(field: FieldInfo) -> str:
    """The values that a key may have, if there are several and the description does not name them."""
    values = list(dict.fromkeys(_literals(field.annotation)))
    known = field.description or ""
    if len(values) < 2 or all(value in known for value in values):
        return ""
    return f" Values: {', '.join(values)}."


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
        return
    for item in get_args(annotation):
        yield from _literals(item)
