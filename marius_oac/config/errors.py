"""Errors of a configuration in one line, with the file, the line and the key, and the key that was meant."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterator, Mapping
from os.path import commonprefix
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from marius_oac.errors import ConfigError, shown
from marius_oac.runtime.files.untrusted import read_bounded

MOST_BYTES = 1 << 20
MOST_VALUES = 100_000
"""Of a YAML file, an alias counting as all that it stands for."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_NUMBER_LENGTH = 64
_SHORT = 10_000
"""Characters of a text whose nodes are kept: a run's configuration is read each time that it is opened."""
_composed = functools.lru_cache(16)(yaml.compose)
_NO_SCALARS = (ValueError, IndexError, KeyError, AttributeError, OverflowError)


def flat(tree: Any, loc: tuple[Any, ...]) -> set[Any]:
    """The parts of a pydantic location that are keys (it also names union branches)."""
    keys, here = set(), tree
    for part in loc:
        listed = isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)
        if isinstance(here, dict) and part in here or listed:
            keys.add(part)
            here = here[part]
        elif part == loc[-1] and isinstance(here, dict):
            keys.add(part)
    return keys


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        plain = isinstance(node, yaml.ScalarNode)
        try:
            if plain and node.tag in _NUMBERS and len(node.value) > _NUMBER_LENGTH:
                raise ValueError
            return super().construct_object(node, deep)
        except _NO_SCALARS:  # a date or number to PyYAML, by its form or its tag, but invalid in Python
            if not plain:
                raise
            problem = f"{shown(node.value)} is not a number or date; put quotes around text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def read_mapping(path: Path, example: str) -> tuple[dict[Any, Any], dict[tuple[Any, ...], int]]:
    """`parse` of a file that holds a mapping, such as `example`.

    Raises:
        ConfigError: as `parse`; it can't be read, or holds something else.
    """
    try:
        text = read_bounded(path, MOST_BYTES, ConfigError).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(reason(error), path) from None
    tree, lines = parse(text, path)
    if not isinstance(tree, dict):
        raise ConfigError(f"must be a mapping of keys, such as `{example}`", path)
    return tree, lines


def parse(text: str, source: object) -> tuple[Any, dict[tuple[Any, ...], int]]:
    """The plain values of a YAML text, and the line of every key.

    Raises:
        ConfigError: not YAML, a key given twice or that is no text, a value that contains itself, too many values.
    """
    try:
        lines: dict[tuple[Any, ...], int] = {}
        kept = len(text) < _SHORT and "<<" not in text  # whose nodes change when values are made of them
        node = (_composed if kept else yaml.compose)(text, _Loader)
        if node is None:
            return None, lines
        _find_lines(node, source, (), lines)
        return _Loader("").construct_document(node), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or getattr(error, "reason", "not YAML"))
        if problem.startswith("but "):
            problem = f"{getattr(error, 'context', None)}, {problem}"
        raise ConfigError(problem, f"{source}:{mark.line + 1}" if mark else source) from None
    except RecursionError:
        raise ConfigError("a value contains itself, or is nested too deeply", source) from None


def _find_lines(node: yaml.Node, source: object, path: tuple[Any, ...], found: dict[tuple[Any, ...], int]) -> None:
    """The line of every key and list item; PyYAML itself would let a key's second value silently win."""
    if len(found) > MOST_VALUES:
        raise ConfigError(
            f"holds more than {MOST_VALUES:,} values, an alias counting as all that it stands for", source
        )
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError("a key must be plain text", f"{source}:{line}")
            here = (*path, str(key.value))
            if here in found:
                raise ConfigError("this key stands here twice", f"{source}:{line}: {'.'.join(here)}")
            found[here] = line
            _find_lines(value, source, here, found)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            here = (*path, str(number))
            found[here] = item.start_mark.line + 1
            _find_lines(item, source, here, found)


def where(path: tuple[Any, ...], source: str | None, lines: Mapping[tuple[Any, ...], int], from_set: set[Any]) -> str:
    """Where a key was written: `--set` if it gives a value that the key is in, or says more of the key's path than the
    file does."""
    key = " ".join(".".join(path).split())
    said = next((n for n in range(len(path), 0, -1) if path[:n] in lines), 0)
    shared = {other: len(commonprefix([path, other])) for other in from_set}
    if any(count == len(other) or count > said for other, count in shared.items()):
        return f"--set {key}"
    place = None if source is None else f"{source}:{lines[path[:said]]}" if said else source
    return ": ".join(part for part in (place, key) if part) or "config"


def located(
    error: ValidationError, model: type[BaseModel], tree: Any, source: str | None,
    lines: Mapping[tuple[Any, ...], int], from_set: Collection[Any] = (),
) -> ConfigError:  # fmt: skip
    """Pydantic's errors on a tree of plain values, each as one line that says where it was written: the first one,
    with the others."""
    found: dict[tuple[str, ...], ConfigError] = {}
    for each in causes(error):
        of_validator = each["type"] == "value_error"
        written = flat(tree, (*each["loc"], None) if of_validator else each["loc"])
        path = tuple(str(part) for part in each["loc"] if part in written)
        message = explain(each, model)
        if of_validator:  # "key: what is wrong", the key relative to the section
            key, _, message = message.partition(": ")
            path = (*path, *key.split("."))
        if not any(_within(path, other) or _within(other, path) for other in found):  # what another type would need
            found[path] = ConfigError(message, where(path, source, lines, set(from_set)))
    first, *others = found.values()
    return first.with_others(others)


def _within(path: tuple[str, ...], section: tuple[str, ...]) -> bool:
    return path[: len(section)] == section


def explain(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    """One line for pydantic's error, with the key that was meant where one is near."""
    if error["type"] == "extra_forbidden":
        name, known = str(error["loc"][-1]), _known(model, error["loc"][:-1])
        near = difflib.get_close_matches(name, known, n=1)
        elsewhere = [path for path, _ in fields(model) if path.rpartition(".")[2] == name]
        hint = f"; did you mean '{near[0]}'?" if near else f"; did you mean '{elsewhere[0]}'?" if elsewhere else ""
        return f"unknown key '{name}'{hint}" if hint else f"unknown key '{name}'; known here: {', '.join(known)}"
    if error["type"] == "missing":
        return "this key is required" if isinstance(error["loc"][-1], str) else "has too few values"
    if error["type"] == "string_too_short":
        return "must not be empty"
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        known = error["ctx"].get("expected_tags", "sage, gat, module").replace("'", "")
        return f"`kind` must be one of {known}, not {shown(error['input'].get('kind'))}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    text = _PLAINER.get(error["type"]) or error["msg"].replace("Input should be", "must be")
    if set(error["loc"][-3:]) & {"candidates", "neighbors"}:
        text = "must be 'all' or a number " + ("below 2^31" if error["type"] == "less_than" else "above 0")
    if {"missing", "missing_numbers"} & set(error["loc"][-3:]) and error["loc"][:2] != ("data", "missing"):
        text = "must be refuse, median or a number"
    if error["type"] == "int_type" and set(error["loc"]) & {"in_flight", "workers"}:
        text = "must be auto or an integer"
    if error["loc"] == ("task",):
        text = "must be graph, node_classification or ctr"
    if error["type"] == "string_pattern_mismatch" and error["loc"] == ("device",):
        text = "must be auto, cpu, cuda or cuda:N"
    return f"{text}, not {shown(error['input'])}"


_PLAINER = {
    "too_short": "must name at least one",
    "model_type": "must be a section of keys",
    "dict_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
    "tuple_type": "must be a list",
    "string_pattern_mismatch": "must be text without null characters",
    "string_type": "must be text",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "byte_size": "must be a size such as 4GiB",
    "byte_size_unit": "must be a size such as 4GiB",
}


def causes(error: ValidationError) -> list[Mapping[str, Any]]:
    """Pydantic's errors, in its order, without those that follow from others. In place of a missing key there is an
    unknown one with a similar name in its section; of an unknown task, which has other keys, the task alone."""
    found = error.errors()
    if tasks := [each for each in found if each["loc"] == ("task",)]:
        return [*tasks]
    inside = {each["loc"][:count] for each in found for count in range(len(each["loc"]))}
    found = [each for each in found if each["type"] != "too_short" or each["loc"] not in inside]  # of wrong items
    unknown = {each["loc"]: each for each in found if each["type"] == "extra_forbidden"}
    causes: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for number, each in enumerate(found):
        *section, key = each["loc"] or ("",)
        names = [str(loc[-1]) for loc in unknown if list(loc[:-1]) == section]
        near = difflib.get_close_matches(str(key), names, n=1) if each["type"] == "missing" else []
        cause = unknown[*section, near[0]] if near else each
        causes.setdefault(cause["loc"] if cause["type"] == "extra_forbidden" else (number,), cause)
    return list(causes.values())


def _sections(annotation: Any) -> dict[str, type[BaseModel]]:
    """The sections that a key, or a list under it, may have: by their `kind`, where there are several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("kind")
        return {str(get_args(kind.annotation)[0]) if kind and kind.is_required() else "": annotation}
    found: dict[str, type[BaseModel]] = {}
    for item in get_args(annotation):
        found |= _sections(item)
    return found


def _known(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """The keys of the section at this path, in which a section's kind follows its number in the list."""
    sections: dict[str, type[BaseModel]] = {}
    for part in path:
        field = model.model_fields.get(str(part))
        sections = _sections(field.annotation) if field else sections
        if field and len(sections) == 1:
            model = next(iter(sections.values()))
        model = sections.get(str(part), model)
    return list(model.model_fields)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key's path and field; a section that may be left out is a key too. `a[]` is an item of the list `a`, and
    `a[b]` one of kind b."""
    for name, field in model.model_fields.items():
        if field.description:
            yield f"{prefix}{name}", field
        listed = get_origin(field.annotation) is tuple
        for kind, section in _sections(field.annotation).items():
            yield from fields(section, f"{prefix}{name}[{kind}]." if listed else f"{prefix}{name}.")


def reason(error: OSError | UnicodeDecodeError) -> str:
    """The reason why a file can't be read, in words for a message."""
    return "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()
