"""Fills a cache of Triton for a machine with a GPU, on one without.

    python -m benchmarks.gpu.warm --out build/gpu-triton-cache.tar.xz
    PYTHONPATH=.venv-triton python -m benchmarks.gpu.warm --out build/gpu-triton-cache.tar.xz --hashed triton-*.whl

What the two calls launch is noted (`noted`). Triton's JIT compiles it by a driver that says that there is a GPU of
compute capability 9.0; machine code alone is kept.

The key of a kernel has a digest of Triton's own files. The Triton that is imported here must have the version of the
other machine's. Where that has another Python, `--hashed` is the wheel for it: it may differ in compiled libraries
alone, and the digest of its `libtriton.so` takes the place of that of the one here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu import triton_cache

ROOT = Path(__file__).parents[2]
TESTS = ("validation", "kernels")
SHARES = 16
"""Into which the launches are divided."""
PATH = ["-v", "-m", "slow or not slow", "-k", "in_the_kernels and (complex or dcnv2)", "tests/devices/test_path.py"]
"""What the path of the device launches: tests that take its kernels on a CPU, too, in three batches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the packed cache")
    parser.add_argument("--hashed", type=Path, help="the wheel of triton for another Python")
    parser.add_argument("--launches", type=Path, help="file of noted launches: read if it is there, else written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        noted = (options.launches or Path(folder) / "launches.jsonl").resolve()
        if not noted.exists():
            note_launches(noted)
        fill(noted, cache := Path(folder) / "cache", options.hashed)
        triton_cache.pack(cache, options.out)
    print(f"{options.out}: {options.out.stat().st_size / (1 << 20):.1f} MiB", flush=True)


def note_launches(file: Path) -> None:
    """Writes a file of what tests and parts launch."""
    from benchmarks.gpu import device_tests
    from benchmarks.gpu.noted import VARIABLE

    environment = {**os.environ, "TRITON_INTERPRET": "1", "MARIUS_OAC_TEST_DEVICE": "cpu", VARIABLE: str(file)}
    processes, began = len(os.sched_getaffinity(0)), time.monotonic()
    tests = [device_tests.command(device_tests.GROUPS[name], processes, small=False) for name in TESTS]
    tests.append([sys.executable, "-m", "pytest", "-n", str(processes), "-p", "no:cacheprovider", *PATH])
    commands = [[*words, "-q", "-p", "benchmarks.gpu.noted"] for words in tests]
    for words in [*commands, [sys.executable, "-c", "from benchmarks.gpu import noted; noted.note_parts()"]]:
        print(f"launches of {words[-1] if words[1] == '-c' else ' '.join(words[2:])}", flush=True)
        done = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            sys.exit(done.stdout.decode(errors="replace")[-4000:])
    print(f"launches noted in {time.monotonic() - began:.0f} s", flush=True)


def fill(noted: Path, out: Path, hashed: Path | None) -> None:
    """Compiles all launches into a new cache; then asks for all of them again, of which none may be compiled."""
    out.mkdir()
    os.environ |= {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(out), "TRITON_STORE_BINARY_ONLY": "1"}
    import triton

    key = _key(hashed)
    for what in ("filled", "second start"):
        before, began = triton_cache.kernels(out), time.monotonic()
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=_begin, initargs=(key,)) as pool:
            every = list(pool.map(_compile, [(noted, place, SHARES) for place in range(SHARES)]))
        asked, made = sum(asked for asked, _ in every), triton_cache.kernels(out) - before
        print(f"{what}: Triton {triton.__version__}, {asked} kinds of launches, {made} kernels compiled, "
              f"{time.monotonic() - began:.1f} s", flush=True)  # fmt: skip
    made_for, size = triton_cache.short(triton.__version__, key), sum(each.stat().st_size for each in out.rglob("*"))
    (out / triton_cache.MADE_FOR).write_text(made_for)
    print(f"{triton_cache.kernels(out)} kernels for {made_for}, {size / (1 << 20):.1f} MiB unpacked", flush=True)
    if failed := [line for _, lines in every for line in lines]:
        sys.exit("\n".join(["these can not be compiled:", *failed]))
    if made:
        sys.exit("the second start compiled kernels, too: their keys are not the same twice")


def _key(hashed: Path | None) -> str:
    """What Triton hashes of itself, with the libraries of another Python's wheel if there is one."""
    import triton
    from triton.runtime.cache import triton_key

    here = Path(triton.__file__).parent
    if hashed is None:
        return triton_key()
    with zipfile.ZipFile(hashed) as wheel:
        for name in wheel.namelist():
            if name.startswith("triton/") and name.endswith((".py", "/ptxas")):
                mine = here.parent / name
                if not mine.exists() or mine.read_bytes() != wheel.read(name):
                    sys.exit(f"{name} of {hashed} is not that of {here}: this is another Triton")
        theirs = wheel.read("triton/_C/libtriton.so")
    mine, theirs = (hashlib.sha256(each).hexdigest() for each in ((here / "_C/libtriton.so").read_bytes(), theirs))
    assert triton_key().count(mine) == 1
    return triton_key().replace(mine, theirs)


class Driver:
    """Of a GPU that is not there: what the JIT asks before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def _begin(key: str) -> None:
    from triton.runtime import cache, driver

    cache.triton_key = lambda: key
    driver.set_active(Driver())


def _compile(share: tuple[Path, int, int]) -> tuple[int, list[str]]:
    """Compiles each so many-th launch of a file; returns how many those are, and what can't be compiled."""
    from benchmarks.gpu.noted import launches

    noted, place, places = share
    mine, failed = launches(noted)[place::places], []
    for kernel, arguments, options in mine:
        try:
            kernel.warmup(*arguments, grid=(1,), **options)
        except Exception as error:  # no test or part that launches it could run on a GPU
            failed.append(f"{kernel.__name__}, {options}: {str(error).strip().splitlines()[-1]}")
    return len(mine), failed


if __name__ == "__main__":
    main()
