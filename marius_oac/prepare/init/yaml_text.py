"""Writes YAML with comments, which PyYAML can't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

_LONGEST = 150  # characters of a comment
_COLUMN = 40  # where comments begin, after shorter lines


def scalar(value: Any) -> str:
    """A value in YAML on one line: a text, a number, or a list or mapping of these."""
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    flow = isinstance(value, list | dict)
    dumped = yaml.safe_dump(
        value, default_style=style, default_flow_style=flow, allow_unicode=style is None, width=float("inf"),
        sort_keys=False,
    )  # fmt: skip
    return dumped.removesuffix("\n").removesuffix("\n...").removesuffix("\n")


def commented(line: str, comment: str = "") -> str:
    """A line followed by a comment, if there is one."""
    return f"{line:<{_COLUMN}}  # {plain(comment)}" if comment else line


def plain(text: str, longest: int = _LONGEST) -> str:
    """A text for a comment: printable, on one line, shortened."""
    one = "".join(each if each.isprintable() else " " for each in text)
    one = " ".join(one.split())
    return one if len(one) <= longest else f"{one[: longest - 3]}..."


def listed(key: str, items: Sequence[tuple[Any, str]], comment: str = "") -> list[str]:
    """The lines of a key with a list of values, each with its comment; empty if there are no values."""
    if not items:
        return []
    return [commented(f"  {key}:", comment), *(commented(f"    - {scalar(value)}", why) for value, why in items)]
