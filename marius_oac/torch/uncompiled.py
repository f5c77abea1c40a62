"""Functions that torch.compile leaves as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def uncompiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """`torch.compiler.disable`, at the first call: it imports torch's compiler, which takes a second.

    torch.optim's optimizers do that, too.
    """
    made: list[Callable[Given, Result]] = []

    @wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Result:
        if not made:
            made.append(torch.compiler.disable(function))
        return made[0](*given, **named)

    return call
