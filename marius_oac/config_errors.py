"""Errors of a configuration in one line, with the file, the line and the key, and the key that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from marius_oac.errors import ConfigError


def flat(tree: Any, loc: tuple) -> set:
    """The parts of a pydantic location that are keys (it also names union branches)."""
    keys, here = set(), tree
    for part in loc:
        if isinstance(here, dict) and part in here:
            keys.add(part)
            here = here[part]
        elif part == loc[-1] and isinstance(here, dict):
            keys.add(part)
    return keys


def lines_of(node: yaml.Node | None, source: object, path: tuple = ()) -> dict[tuple, int]:
    """The line of every key; PyYAML itself would let a second one silently win."""
    found: dict[tuple, int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here, line = (*path, str(key.value)), key.start_mark.line + 1
            if here in found:
                raise ConfigError("this key stands here twice", f"{source}:{line}: {'.'.join(here)}")
            found[here] = line
            found.update(lines_of(value, source, here))
    return found


def where(path: tuple, source: str | None, lines: Mapping[tuple, int], from_set: set) -> str:
    key = ".".join(path)
    if path in from_set:
        return f"--set {key}"
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
    place = None if source is None else source if line is None else f"{source}:{line}"
    return ": ".join(part for part in (place, key) if part) or "config"


def explain(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    """One line for pydantic's error, with the key that was meant where one is near."""
    if error["type"] == "extra_forbidden":
        name, known = str(error["loc"][-1]), _known(model, error["loc"][:-1])
        near = difflib.get_close_matches(name, known, n=1)
        elsewhere = [path for path, _ in fields(model) if path.rpartition(".")[2] == name]
        hint = f"; did you mean '{near[0]}'?" if near else f"; did you mean '{elsewhere[0]}'?" if elsewhere else ""
        return f"unknown key '{name}'{hint}" if hint else f"unknown key '{name}'; known here: {', '.join(known)}"
    if error["type"] == "missing":
        return "this key is required"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    text = _PLAINER.get(error["type"]) or f"{error['msg'][0].lower()}{error['msg'][1:]}"
    if error["loc"][-2:-1] == ("candidates",):
        text = "must be 'all' or a number above 0"
    return f"{text}, not {error['input']!r}"


_PLAINER = {
    "model_type": "must be a section of keys",
    "dict_type": "must be a section of keys",
    "string_pattern_mismatch": "must be auto, cpu, cuda or cuda:N",
}


def _section(annotation: Any) -> type[BaseModel] | None:
    options = (annotation, *getattr(annotation, "__args__", ()))
    return next((item for item in options if isinstance(item, type) and issubclass(item, BaseModel)), None)


def _known(model: type[BaseModel], path: tuple) -> list[str]:
    for part in path:
        field = model.model_fields.get(str(part))
        section = _section(field.annotation) if field else None
        if section:
            model = section
    return list(model.model_fields)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key's path and field; a section that may be left out is a key too."""
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        if field.description:
            yield f"{prefix}{name}", field
        if section:
            yield from fields(section, f"{prefix}{name}.")


def reason(error: Exception) -> str:
    return "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()
