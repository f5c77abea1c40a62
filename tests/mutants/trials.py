"""A copy of the sources in which one file at a time is changed, and processes forked to run tests there.

The parent has imported all; a trial imports anew the changed file and those that import it, and so do the processes
that its tests start. Kernels are compiled anew where the changed file is what they are made of: the trial's
cache of machine code lacks those of the modules that import it.
"""

import ast
import contextlib
import importlib
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numba
import psutil
import pytest

from tests.mutants.reach import ROOT

LEFT_OUT = (".git", ".venv", ".venv-dgl", "__pycache__", "build", ".pytest_cache", ".hypothesis", ".mypy_cache")
MOST_BYTES = 6 << 30
IDLE_S = 25
"""A test that waits for what does not come waits without computing."""
OPTIONS = (
    "-q",
    "-x",
    "--tb=line",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-o",
    "addopts=",
    "-m",
    "slow or not slow",
)


@dataclass(frozen=True)
class Ended:
    """`outcome`: passed, failed, crashed, hung or too large. `killer`: the first test that failed; "": none did."""

    outcome: str
    killer: str
    seconds: float


def _left_out(folder: str, names: list[str]) -> set[str]:
    """`runs` at the root holds what users train; a package of that name is another."""
    return shutil.ignore_patterns(*LEFT_OUT, *(["runs"] if Path(folder) == ROOT else []))(folder, names)


class Workshop:
    """A folder with `copy`, of the checkout, and `numba`, the machine code of its kernels."""

    def __init__(self, folder: Path):
        self.folder, self.copy, self.cache = folder, folder / "copy", folder / "numba"
        if not self.copy.exists():
            shutil.copytree(ROOT, self.copy, ignore=_left_out, symlinks=True)
        self.cache.mkdir(exist_ok=True)
        self._importers = _importers(self.copy)

    def environment(self) -> dict[str, str]:
        children = self.copy / "tests" / "mutants"
        return {"PYTHONPATH": f"{children}:{self.copy}", "NUMBA_CACHE_DIR": str(self.cache)}

    @contextlib.contextmanager
    def changed(self, path: str, source: bytes):
        """While it lasts the copy's file `path` holds `source`."""
        file = self.copy / path
        before, stamp = file.read_bytes(), file.stat().st_mtime_ns
        try:
            file.write_bytes(source)
            yield
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(stamp, stamp))  # which the machine code in the cache was made from

    def load(self) -> None:
        """Imports the package, from the copy, and what tests import with it."""
        os.environ.update(self.environment())
        numba.core.config.CACHE_DIR = str(self.cache)
        os.chdir(self.copy)
        sys.path[:] = [str(self.copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
        _forget(lambda name: name.partition(".")[0] in ("tests", "marius_oac"))
        importlib.import_module("tests.conftest")
        _forget(lambda name: name.partition(".")[0] == "tests")

    def run(self, tests: list[str], limit: float, path: str | None = None, kernel: bool = False) -> Ended:
        """Tests, in a process of their own, where the file `path` has been changed, and perhaps a kernel in it."""
        with tempfile.TemporaryDirectory(prefix="trial.", dir=self.folder, ignore_cleanup_errors=True) as folder:
            cache = self._cache_without(path, Path(folder)) if kernel else self.cache
            told, began = Path(folder) / "killer", time.monotonic()
            child = os.fork()
            if child == 0:
                stale = {".".join(file.relative_to(self.copy).with_suffix("").parts)
                         for file in self._importers.get(path, ())}  # fmt: skip
                _forget(stale.__contains__)
                _become_pytest(cache, Path(folder), told, tests)
            outcome = _await(child, limit)
            killer = told.read_text("utf-8") if told.exists() else ""
        return Ended(outcome, killer, time.monotonic() - began)

    def _cache_without(self, changed: str, folder: Path) -> Path:
        cache = folder / "numba"
        shutil.copytree(self.cache, cache, copy_function=os.link)
        for path in self._importers[changed]:
            for file in cache.glob(f"{path.parent.name}_*/{path.stem}.*"):
                file.unlink()
        return cache


def _importers(root: Path) -> dict[str, set[Path]]:
    """For each file of the package: itself and the files that import it, or import one that does."""
    files = {str(path.relative_to(root)): path for path in (root / "marius_oac").rglob("*.py")}
    direct: dict[str, set[str]] = {name: {name} for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if (file := module.replace(".", "/") + ".py") in files:
                        direct[file].add(name)
    for _ in files:
        wider = {name: set().union(*(direct[other] for other in found)) for name, found in direct.items()}
        if wider == direct:
            break
        direct = wider
    return {name: {files[other] for other in found} for name, found in direct.items()}


class _FirstFailure:
    def __init__(self, told: Path):
        self._told = told

    def pytest_runtest_logreport(self, report):
        if report.failed and not self._told.exists():
            self._told.write_text(report.nodeid, "utf-8")

    def pytest_collectreport(self, report):
        if report.failed and not self._told.exists():
            self._told.write_text(f"import of {report.nodeid}", "utf-8")


def _forget(unwanted) -> None:
    for name in [name for name in sys.modules if unwanted(name)]:
        module = sys.modules.pop(name)
        package, _, own = name.rpartition(".")
        if package in sys.modules and getattr(sys.modules[package], own, None) is module:
            delattr(sys.modules[package], own)


def _become_pytest(cache: Path, folder: Path, told: Path, tests: list[str]) -> None:
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(folder / "output", "wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ.update(NUMBA_CACHE_DIR=str(cache), TMPDIR=str(folder))
        tempfile.tempdir = None
        numba.core.config.CACHE_DIR = str(cache)
        code = pytest.main([*OPTIONS, f"--basetemp={folder / 'tests'}", *tests], plugins=[_FirstFailure(told)])
        sys.stdout.flush()
    finally:
        os._exit(int(code))


def _await(child: int, limit: float) -> str:
    """How it ended. It hangs where it is not done within the limit, or has had nothing to compute for long."""
    deadline, computed, since = time.monotonic() + limit, 0.0, time.monotonic()
    watched, verdict = os.pidfd_open(child), None
    try:
        while not select.select([watched], [], [], 1)[0]:
            family, seconds, held = _family(child)
            if seconds > computed + 0.05:
                computed, since = seconds, time.monotonic()
            if held > MOST_BYTES:
                verdict = "too large"
            elif time.monotonic() > min(deadline, since + IDLE_S):
                verdict = "hung"
            if verdict:
                for each in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(watched)
    return verdict or {0: "passed"}.get(code, "failed" if code > 0 else "crashed")


def _family(child: int) -> tuple[list[psutil.Process], float, int]:
    """A process and those below it; the seconds that they have computed, and the bytes that they hold."""
    family, seconds, held = [], 0.0, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(child)
        for each in [process, *process.children(recursive=True)]:
            family.append(each)
            times = each.cpu_times()
            seconds += times.user + times.system
            held += each.memory_info().rss
    return family, seconds, held
