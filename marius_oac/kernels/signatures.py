"""Kernels with the types of their arguments as text, a call in Python's syntax: lines of `signatures.txt`.

| text | type |
|---|---|
| `int64`, `float32`, `bool` | a number |
| `3` | an integer that the compiler knows |
| `float32[2]`, `const(float32[2])` | an array of two axes in C order, writable or not |
| `(int64, float32)` | a tuple |
| `kernels.cpu.rows.Table(int64, (), ...)` | a named tuple of the package |
| `enum(types.Side)` | an enumeration of the package |
"""

from __future__ import annotations

import ast
from importlib import import_module
from typing import Any

from numba import types

PACKAGE = "marius_oac."


def kernel_of(call: str) -> tuple[Any, tuple[Any, ...]]:
    """The kernel of a call, and the types of its arguments. Raises ValueError for what is no such text."""
    match ast.parse(call, mode="eval").body:
        case ast.Call(func=place, args=arguments):
            return attribute(ast.unparse(place)), tuple(map(_type, arguments))
    raise ValueError(f"no call: {call}")


def _type(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return types.literal(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return types.literal(-number)
        case ast.Name(id=name) if isinstance(found := getattr(types, name, None), types.Number | types.Boolean):
            return found
        case ast.Subscript(value=number, slice=ast.Constant(value=int(axes))):
            return types.Array(_type(number), axes, "C")
        case ast.Tuple(elts=members):
            return types.BaseTuple.from_types(tuple(map(_type, members)))
        case ast.Call(func=ast.Name(id="const"), args=[array]):
            return _type(array).copy(readonly=True)
        case ast.Call(func=ast.Name(id="enum"), args=[place]):
            return types.IntEnumMember(attribute(ast.unparse(place)), types.int64)
        case ast.Call(func=ast.Attribute() as place, args=members):
            return types.BaseTuple.from_types(tuple(map(_type, members)), attribute(ast.unparse(place)))
    raise ValueError(f"no type: {ast.unparse(node)}")


def attribute(place: str) -> Any:
    """What a module of the package has under this name: `kernels.cpu.rows.Table`. Raises ValueError if nothing."""
    module, _, name = place.rpartition(".")
    try:
        return getattr(import_module(PACKAGE + module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no {place}: {error}") from None
