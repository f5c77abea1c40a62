"""What runs compile, for `marius_oac/kernels/signatures.txt`: `python -m tests.signatures` writes it anew.

Trains small configurations, most of them those of `tests/bits.py`, each with an empty cache of Numba's, and reads from
the caches which kernels were compiled, for which types of arguments. A group holds what all runs of a kind compile.
The lines stand in the order in which processes should take them (`scheduled`). Takes about three minutes.
"""

from __future__ import annotations

import argparse
import heapq
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numba.core.registry import CPUDispatcher

from marius_oac.kernels.ahead import RECORD
from marius_oac.kernels.cpu import bfloat16_gemm
from marius_oac.kernels.signatures import PACKAGE, attribute, text_of, types_of
from tests.bits import CASES, HERE, Case, changed, train_all

_TEXT = {"train": "day_*.csv", "test": "test.csv", "label": "label", "numeric": [], "categorical": ["user", "item"],
         "multi_valued": [], "ignored": ["number"]}  # fmt: skip
_NETWORK = {"model": {"batch_norm": True, "dropout": 0.2}, "training": {"optimizer": {"kind": "adam"}}}
_IN_PARTS = {"training": {"epochs": 1, "batch_size": 4096}, "nodes": {"parts": 8}}
_BFLOAT16 = {"compute": {"precision": "bfloat16"}}
GROUPS = {
    "links": ["ComplEx, codex-s", "all candidates"],
    "clicks": ["DeepFM", "clicks as text"],
    "classes": ["classes of nodes"],
    "encoder": ["GraphSAGE and GAT"],
    "disk": ["on disk, COMET, then in memory", "clicks on disk"],
    "nodes": ["two nodes", "two nodes, links"],
    "bfloat16": ["links, bfloat16 products", "clicks, bfloat16 products"],
}
"""Configurations, by the group to which what they compile belongs, where no group before has it."""
PROCESSES = 2
_BY_NAME = {case.name: case for case in CASES}


def cases() -> dict[str, Case]:
    """The configurations of `GROUPS`, by name."""
    clicks, links = _BY_NAME["DeepFM"].config, _BY_NAME["ComplEx, codex-s"].config
    more = [
        Case("all candidates", changed(links, {"evaluation": {"candidates": "all"}})),
        Case("clicks as text", changed({**clicks, "data": _TEXT}, _NETWORK)),
        Case("clicks on disk", {**clicks, "storage": {"memory": 200_000, "page": 4096}}),
        Case("two nodes, links", {**links, **_IN_PARTS}, ("--local-nodes", "2")),
        Case("links, bfloat16 products", changed(links, _BFLOAT16)),
        Case("clicks, bfloat16 products", changed(clicks, _BFLOAT16)),
    ]
    return _BY_NAME | {case.name: case for case in more}


def kernels() -> Iterator[tuple[str, Any]]:
    """All kernels of the package with their places, such as `kernels.cpu.rows.read`."""
    root = HERE / "marius_oac"
    for path in sorted(root.rglob("*.py")):
        if "marius_oac.kernels.cpu.jit import" in path.read_text("utf-8"):
            module = importlib.import_module(".".join(path.relative_to(HERE).with_suffix("").parts))
            for name, found in vars(module).items():
                if isinstance(found, CPUDispatcher) and found.py_func.__module__ == module.__name__:
                    yield f"{module.__name__.removeprefix(PACKAGE)}.{name}", found


def kept(cache: Path) -> set[str]:
    """What a folder of Numba's cache holds of the package, as kernels with the types of their arguments."""
    found = set()
    indexes = {path.name: path for path in cache.rglob("*.nbi")}
    for place, kernel in kernels():
        file = kernel._cache._cache_file
        if path := indexes.get(Path(file._index_path).name):
            file._index_path = str(path)
            found |= {place + text_of(tuple(types)) for types, *_ in file._load_index()}
    return found


def compiled(names: Sequence[str], folder: Path, begun: Iterable[Path] = ()) -> set[str]:
    """Trains configurations in a new folder with an empty cache, or one that begins with what was compiled in the
    folders `begun`; what is in it afterwards."""
    known, cache = cases(), folder.with_name(f"{folder.name}-kernels")
    for earlier in begun:
        shutil.copytree(earlier.with_name(f"{earlier.name}-kernels"), cache, dirs_exist_ok=True)
    given = os.environ.pop("NUMBA_CACHE_DIR", None)
    try:
        results = train_all(HERE, folder, [known[name] for name in names], cache)
    finally:
        if given is not None:
            os.environ["NUMBA_CACHE_DIR"] = given
    assert "failed" not in str(results), results
    return kept(cache)


def in_order(calls: Sequence[str]) -> list[str]:
    """Calls in the order in which to compile them, as a new process with an empty cache has measured it."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.signatures", "--measure"], input=json.dumps(calls), cwd=HERE, text=True,
            stdout=subprocess.PIPE, env=os.environ | {"NUMBA_CACHE_DIR": folder}, check=True,
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def measured(calls: Sequence[str]) -> list[str]:
    """Compiles all calls here; returns them in the order in which to."""
    places = {kernel: place for place, kernel in kernels()}
    seconds, callers, open_ = defaultdict(float), defaultdict(set), list[str]()
    whole = CPUDispatcher.compile

    def compile_(kernel: Any, types: Any) -> Any:
        call = places[kernel] + text_of(tuple(types)) if kernel in places else ""
        if open_ and call != open_[-1]:
            callers[call].add(open_[-1])
        open_.append(call)
        started = time.thread_time()
        try:
            return whole(kernel, types)
        finally:
            spent = time.thread_time() - started
            open_.pop()
            seconds[call] += spent
            if open_:
                seconds[open_[-1]] -= spent

    CPUDispatcher.compile = compile_
    for call in calls:
        place, bracket, types = call.partition("(")
        attribute(place).compile(types_of(bracket + types))
    return scheduled(calls, seconds, callers)


def scheduled(calls: Iterable[str], seconds: Mapping[str, float], callers: Mapping[str, set[str]]) -> list[str]:
    """Calls as two processes would begin them that compile nothing before all that it calls: of those that could be
    begun, first what the longest chain of callers waits for."""
    waited: dict[str, float] = {}

    def chain(call: str) -> float:
        if call not in waited:
            waited[call] = seconds.get(call, 0) + max(map(chain, callers.get(call, ())), default=0.0)
        return waited[call]

    waiting = sorted(calls, key=lambda call: (-chain(call), call))
    needs = {call: {each for each in waiting if call in callers.get(each, ())} for call in waiting}
    order, done, running = list[str](), set[str](), list[tuple[float, str]]()
    now = 0.0
    while waiting:
        ready = next((call for call in waiting if needs[call] <= done), None)
        if ready is not None and len(running) < PROCESSES:
            waiting.remove(ready)
            order.append(ready)
            heapq.heappush(running, (now + seconds.get(ready, 0), ready))
        else:
            now, ended = heapq.heappop(running)
            done.add(ended)
    return order


def lines(found: dict[str, set[str]], order: Sequence[str]) -> list[str]:
    """Lines of the record."""
    made = []
    for call in order:
        groups = [group for group in GROUPS if call in found[group]]
        if {"links", "clicks"}.intersection(groups):  # what all runs on edges or clicks compile anyway
            groups = [group for group in groups if group not in ("disk", "nodes", "bfloat16")]
        made.append(f"{','.join(groups)} {call}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.signatures", description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="only print the order of the calls on standard input")
    if parser.parse_args().measure:
        print(json.dumps(measured(json.load(sys.stdin))))
        return
    if not bfloat16_gemm.is_there():
        sys.exit("the record has kernels for AVX-512 BF16, which this processor has not: it can't be written here")
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for number, (group, names) in enumerate(GROUPS.items()):
            found[group] = compiled(names, Path(folder) / str(number))
            print(f"{group}: {len(found[group])} kernels", flush=True)
    made = lines(found, in_order(sorted(set.union(*found.values()))))
    RECORD.write_text("\n".join(["# What runs compile, by group; `python -m tests.signatures` writes it.", *made, ""]))
    print(f"{RECORD.name}: {len(made)} lines")


if __name__ == "__main__":
    main()
