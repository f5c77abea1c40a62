"""Small changes of a source file, each of which some test should see.

Not changed: docstrings and other texts, annotations, decorators, errors that are raised, `assert`, `__repr__`.
"""

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass

COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
            ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
            ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
            ast.Mod: ast.FloorDiv}  # fmt: skip
OTHER_NAME = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "any": "all", "all": "any"}
KERNEL = {"compiled", "inlined", "pasted", "float_compiled", "float_inlined", "allocating", "njit", "kept",
          "intrinsic"}  # fmt: skip
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


@dataclass(frozen=True)
class Mutant:
    """`source[start:end]`, in bytes, becomes `text`. `function`: the qualified name of the function that holds it."""

    path: str
    line: int
    kind: str
    function: str
    before: str
    text: str
    start: int
    end: int
    kernel: bool

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def record(self) -> dict:
        return asdict(self)


def is_kernel(node: ast.AST) -> bool:
    """Whether it is a function that Numba compiles."""
    return any(ast.unparse(mark).split("(")[0].split(".")[-1] in KERNEL for mark in getattr(node, "decorator_list", ()))


def _makes_kernels(node: ast.AST) -> bool:
    """Whether it is a decorator of kernels that a module makes, or a function that emits LLVM's instructions."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.value).startswith("kept(")
    return any(ast.unparse(mark) == "intrinsic" for mark in getattr(node, "decorator_list", ()))


def _text(node: ast.AST) -> bool:
    return isinstance(node, TEXTS) or isinstance(node, ast.Constant) and isinstance(node.value, str)


def _with(node: ast.AST, **fields) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return ast.unparse(changed)


class _Sites(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes):
        self._path, self._source = path, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        nodes = list(ast.walk(ast.parse(source)))
        # How kernels are compiled, and the instructions in them, are in the machine code of other files.
        self._kernel = any(_makes_kernels(node) for node in nodes)
        self._kernels = self._kernel or any(map(is_kernel, nodes))
        self.found: list[Mutant] = []

    def _add(self, kind: str, node: ast.AST, text: str) -> None:
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        before = self._source[start:end].decode()
        if isinstance(node, ast.expr):
            text = f"({text})"
        name = ".".join(self._names).removesuffix(".<locals>")
        kernel = self._kernel or self._kernels and not name  # a number of the module is part of the machine code
        self.found.append(Mutant(self._path, node.lineno, kind, name, before, text, start, end, kernel))

    def visit_ClassDef(self, node):
        self._names.append(node.name)
        for part in node.body:
            self.visit(part)
        self._names.pop()

    def visit_FunctionDef(self, node):
        if node.name in ("__repr__", "__str__"):
            return
        kernel, names = self._kernel, self._names
        self._kernel = kernel or is_kernel(node)
        self._names = [*names, node.name, "<locals>"]
        for part in (*node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.visit(part)
        for part in node.body:
            self.visit(part)
        self._kernel, self._names = kernel, names

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Raise(self, node):
        pass

    visit_Assert = visit_JoinedStr = visit_Import = visit_ImportFrom = visit_Raise

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node):
        value = node.value
        if isinstance(value, ast.Constant) or "prefetch" in ast.unparse(value):
            return  # a text; a hint that changes no result
        if isinstance(value, ast.Call | ast.Await):
            self._add("statement deleted", node, "pass")
        self.visit(value)

    def visit_Assign(self, node):
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("statement deleted", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        self._add("statement deleted", node, "pass")
        if other := COMPUTED.get(type(node.op)):
            self._add("arithmetic", node, _with(node, op=other()))
        self.visit(node.value)

    def visit_Compare(self, node):
        for place, operator in enumerate(node.ops):
            ops = [*node.ops]
            ops[place] = COMPARED[type(operator)]()
            self._add("comparison", node, _with(node, ops=ops))
        self.generic_visit(node)

    def visit_BinOp(self, node):
        other = COMPUTED.get(type(node.op))
        if other and not _text(node.left) and not _text(node.right):
            self._add("arithmetic", node, _with(node, op=other()))
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        self._add("and/or", node, _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And()))
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add("constant", node, repr(node.value + 1))
            self._add("constant", node, repr(node.value - 1))

    def _condition(self, node):
        self._add("negated", node.test, f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = _condition

    def visit_comprehension(self, node):
        for test in node.ifs:
            self._add("negated", test, f"not ({ast.unparse(test)})")
        self.generic_visit(node)

    def visit_Return(self, node):
        value = node.value
        if value is None or isinstance(value, ast.Constant) and value.value is None:
            return
        if isinstance(value, ast.Compare | ast.BoolOp):
            self._add("return", value, f"not ({ast.unparse(value)})")
        elif not self._kernel:
            self._add("return", value, "None")
        elif not _text(value):
            self._add("return", value, f"({ast.unparse(value)}) + 1")
        self.visit(value)

    def visit_Call(self, node):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in OTHER_NAME:
            function = copy.copy(node.func)
            setattr(function, "attr" if isinstance(function, ast.Attribute) else "id", OTHER_NAME[name])
            self._add("min/max", node, _with(node, func=function))
        if node.keywords:
            self._add("argument dropped", node, _with(node, keywords=node.keywords[:-1]))
        elif len(node.args) > 1 and not self._kernel:
            self._add("argument dropped", node, _with(node, args=node.args[:-1]))
        self.generic_visit(node)

    def visit_Slice(self, node):
        for bound in (node.lower, node.upper):
            if bound is not None:
                self._add("slice bound", bound, f"({ast.unparse(bound)}) + 1")
                self._add("slice bound", bound, f"({ast.unparse(bound)}) - 1")
        self.generic_visit(node)


def all_mutants(path: str, source: bytes) -> list[Mutant]:
    sites = _Sites(path, source)
    sites.visit(ast.parse(source))
    return sites.found


def sampled(mutants: list[Mutant], seed: int) -> Iterator[Mutant]:
    """All of them in an order drawn with the seed: kinds in turn, and a line's second mutant after all lines' first."""
    if not mutants:
        return
    chance = random.Random(f"{seed}:{mutants[0].path}")
    left, lines = chance.sample(mutants, len(mutants)), set()
    kinds = sorted({mutant.kind for mutant in mutants})
    chance.shuffle(kinds)
    for fresh in (True, False):
        while any(not fresh or mutant.line not in lines for mutant in left):
            for kind in kinds:
                for mutant in left:
                    if mutant.kind == kind and (not fresh or mutant.line not in lines):
                        lines.add(mutant.line)
                        left.remove(mutant)
                        yield mutant
                        break
