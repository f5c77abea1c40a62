"""Which tests reach which functions: measured while the tests pass, also in the processes that they start.

As a plugin of pytest (`-p tests.mutants.reach`, with MUTANTS_REACH=FILE) it appends lines `TEST<tab>PATH::QUALNAME`
for each function of the package that a test calls, and `TEST<tab>SECONDS` when the test ends. `sitecustomize.py`, in
this folder, does the same for child processes, which have the test's name from pytest's PYTEST_CURRENT_TEST.
"""

import ast
import collections
import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from tests.mutants.kinds import is_kernel

ROOT = Path(__file__).parents[2]
PACKAGE = str(ROOT / "marius_oac") + os.sep


class _Recorder:
    """Appends each function to the file the first time that a test calls it in this process."""

    def __init__(self, path: str):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._seen: set = set()
        self._late = b""

    def __call__(self, frame, event, argument, *, package=PACKAGE, environ=os.environ):
        code = frame.f_code
        if code in self._seen or not code.co_filename.startswith(package):
            return None
        self._seen.add(code)
        where = code.co_filename[len(package) - len("marius_oac/") :]
        test = environ.get("PYTEST_CURRENT_TEST", "")
        self.write(f"{test.rpartition(' ')[0]}\t{where}::{code.co_qualname}")
        return None

    def write(self, line: str) -> None:
        self._late += (line + "\n").encode()
        with contextlib.suppress(OSError):  # a test that limits the size of files, for a while
            os.write(self._file, self._late)
            self._late = b""

    def forget(self) -> None:
        self._seen.clear()

    def start(self) -> "_Recorder":
        threading.settrace(self)
        sys.settrace(self)
        return self


def record(path: str) -> _Recorder:
    return _Recorder(path).start()


if "MUTANTS_REACH" in os.environ and "pytest" in sys.modules:
    import pytest

    _recorder = record(os.environ["MUTANTS_REACH"])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item, nextitem):
        _recorder.forget()
        sys.settrace(_recorder)
        began = time.perf_counter()
        result = yield
        _recorder.write(f"{item.nodeid}\t{time.perf_counter() - began:.3f}")
        return result


class Reach:
    """What has been measured: `tests[function]`, and `seconds[test]` of those that passed or failed."""

    def __init__(self, files: list[Path]):
        self.seconds: dict[str, float] = {}
        found: dict[str, set[str]] = collections.defaultdict(set)
        for file in files:
            for line in file.read_text("utf-8").splitlines():
                test, _, what = line.partition("\t")
                if "::" not in what:
                    self.seconds[test] = float(what)
                elif test:
                    found[what].add(test)
        self._namers, self._kernels = _namers()
        self._tests = {what: tests for what, tests in found.items() if what not in self._kernels}

    def of_function(self, path: str, function: str) -> set[str]:
        """Tests that call it, or something in it. A kernel's are those of the functions that name it."""
        if not function or function.rpartition(".")[2][:1].isupper():  # of a module, or of a class
            return self.of_file(path)
        what, outer = f"{path}::{function}", function.partition(".<locals>")[0]
        in_kernel = f"{path}::{outer}" in self._kernels
        found = self._of_kernel(outer, set()) if in_kernel else self._tests.get(what, set())
        return found & self.seconds.keys()

    def of_file(self, path: str) -> set[str]:
        """Tests that call any function of it."""
        found: set[str] = set()
        for what in (*self._tests, *self._kernels):
            if what.startswith(f"{path}::"):
                name = what.rpartition("::")[2]
                found |= self._of_kernel(name, set()) if what in self._kernels else self._tests[what]
        return found & self.seconds.keys()

    def _of_kernel(self, name: str, seen: set[str]) -> set[str]:
        found: set[str] = set()
        for where, namer in self._namers.get(name.rpartition(".")[2], ()):
            if (begin := f"{where}::{namer}") in seen:
                continue
            seen.add(begin)
            if where.startswith("tests"):
                begin = begin if namer.startswith("test_") else where
                found |= {test for test in self.seconds if test.startswith(begin)}
            else:
                found |= self._tests.get(begin, set()) or self._of_kernel(namer, seen)
        return found


def _namers() -> tuple[dict[str, list[tuple[str, str]]], set[str]]:
    """For each name: the functions (file, qualified name) of the package and of the tests that use it. And the kernels,
    of which a process that compiles them records no call, and one that does not is a test of its own."""
    found: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    kernels: set[str] = set()

    def look(node, where, qualified):
        for child in ast.iter_child_nodes(node):
            inner = qualified
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = [*qualified, child.name]
                if is_kernel(child):
                    kernels.add(f"{where}::{'.'.join(inner)}")
            if isinstance(child, ast.Name | ast.Attribute) and qualified:
                found[child.id if isinstance(child, ast.Name) else child.attr].append((where, ".".join(qualified)))
            look(child, where, inner)

    for path in sorted([*(ROOT / "marius_oac").rglob("*.py"), *(ROOT / "tests").rglob("test_*.py")]):
        look(ast.parse(path.read_text("utf-8")), str(path.relative_to(ROOT)), [])
    return found, kernels
