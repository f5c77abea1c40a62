"""Whose a checkpoint is, and which parts of several nodes are one moment.

A checkpoint is known by the run, by the processes that saved it and by its batch. The run and the processes have random
names: they decide no bits, and no seed gives them. So a checkpoint of another run is known although its files are whole
and its tables have the same shapes, and an older one of this run although it has the same number.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from marius_oac.errors import CheckpointError
from marius_oac.runtime.files.untrusted import Described

Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


def new_token() -> str:
    """A random name."""
    return secrets.token_hex(8)


class Origin(Described):
    """Whose a checkpoint is, as its manifest has it.

    Attributes:
        run: the run's `id` in `run.json`; None: it was saved outside of a run.
        session: random, of the processes that saved it, from their start to their end. The parts of one moment have the
            same, and none of another moment has, as each batch is saved once in a session.
        part: of a run over nodes LAYOUT/NODE, of a loop of several processes the name of its folder; "": it is whole.
        number, parts: which part, and of how many.
        alike: whether the dense parameters of all parts had the same bits, as they have with all-reduce.
    """

    run: Token | None = None
    session: Token = Field(default_factory=new_token)
    part: str = ""
    number: Annotated[int, Field(ge=0)] = 0
    parts: Annotated[int, Field(ge=1)] = 1
    alike: bool = False

    def foreign(self, run: str | None, part: str | None) -> str | None:
        """What is wrong with it where a checkpoint of this run and part is expected; None: nothing. An argument that is
        None is not compared."""
        if run is not None and self.run != run:
            return "is a checkpoint of another run"
        if part is not None and self.part != part:
            return f"is the part of {_called(self.part)}, and lies where that of {_called(part)} belongs"
        return None


def _called(part: str) -> str:
    return part or "a run without nodes"


def apart(parts: Sequence[dict[str, Any]], complete: bool = True) -> tuple[int, str] | None:
    """Which of several parts, and why, does not belong to the first one's moment; None: they are one.

    Args:
        parts: `Checkpoint.facts` of each.
        complete: whether these should be all parts.
    """
    first = parts[0]
    for number, each in enumerate(parts):
        for key, said in _SAME.items():
            if each[key] != first[key]:
                return number, f"{said} than that of part {first['number']}"
    alike = [(number, each["dense"]) for number, each in enumerate(parts) if each["alike"] and each["trains"]]
    for number, digest in alike:
        if digest != alike[0][1]:
            return number, f"has other dense parameters than part {parts[alike[0][0]]['number']}, which had the same"
    numbers = [each["number"] for each in parts]
    if len(set(numbers)) < len(numbers) or (complete and sorted(numbers) != list(range(first["parts"]))):
        here = ", ".join(map(str, sorted(numbers)))
        return 0, f"is one of {first['parts']} parts, and here are the parts {here}"
    return None


def check_together(parts: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Raises CheckpointError if parts, each with the path of its folder, are not one moment."""
    if found := apart([facts for _, facts in parts]):
        raise CheckpointError(found[1], parts[found[0]][0])


_SAME = {
    "run": "is of another run",
    "session": "was saved at another start of the run",
    "sequence": "is of another batch",
    "parts": "is one of another number of parts",
    "placement": "has another placement of rows",
    "agreed": "has another loss or best value",
}
"""What all parts of a moment have the same of, and what is said of one that has not."""
