"""Numba takes nothing from the folder that a program is called in, whoever imports it and whenever it compiles."""

import os
import subprocess
import sys

import pytest

from marius_oac.runtime import present_folder
from tests.strangers import audited, lay_for_numba, lines, write

COMPILES = """
import {first}
import os
{leave}
import {then}
import numpy as np
from marius_oac.kernels.cpu.random import mix
from numba import config, njit

@njit
def plus(x):
    return x + 1

plus(1)
mix(np.uint64(1))
print(repr(config.CACHE_DIR), int(config.OPT), repr(config.CHROME_TRACE))
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "folder").mkdir()
    lay_for_numba(tmp_path / "folder", tmp_path / "fired")
    return tmp_path / "folder"


def run(place, code, **variables):
    environment = audited(place, place.parent) | variables
    return subprocess.run([sys.executable, "-c", code], cwd=place, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("first", "then"), [("marius_oac", "numba"), ("numba", "marius_oac")])
def test_numba_reads_no_settings_and_no_code_of_the_present_folder(place, first, then):
    done = run(place, COMPILES.format(first=first, then=then, leave=""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "'' 3 ''\n", "")
    assert not (place.parent / "fired").exists()
    ours_first = lines(place.parent / "opened") == set()
    assert ours_first or first == "numba"


@pytest.mark.slow
def test_settings_of_the_environment_hold(place):
    done = run(place, COMPILES.format(first="marius_oac", then="numba", leave=""), NUMBA_OPT="2")
    assert (done.stdout, lines(place.parent / "opened")) == ("'' 2 ''\n", set())


@pytest.mark.slow
def test_a_folder_that_is_gone_to_later_has_no_say_either(place):
    code = COMPILES.format(first="marius_oac", then="numba", leave=f"os.chdir({str(place)!r})")
    environment = audited(place, place.parent)
    done = subprocess.run([sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("'' 3 ''\n", "")
    assert not (place.parent / "fired").exists() and not (place.parent / "opened").read_text()


@pytest.mark.slow
def test_processes_that_compile_open_nothing_there(place):
    record = place.parent / "record.txt"
    record.write_text("some kernels.cpu.random.mix(uint64)\nsome kernels.cpu.bfloat16.rounded_bits(uint32)\n")
    code = (
        "import os\nfrom pathlib import Path\nfrom marius_oac.kernels import ahead\n"
        f"ahead.RECORD = Path({str(record)!r})\nos.sched_getaffinity = lambda number: {{0, 1}}\n"
        "with ahead.compiling(['some']):\n    ahead.wait()\n    print(ahead._running._process.wait())"
    )
    for name in ("json", "numpy", "typing"):
        write(place / f"{name}.py", "1/0\n")
    cache = place.parent / "cache"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=place, text=True, capture_output=True,
                          env=audited(place, place.parent) | {"NUMBA_CACHE_DIR": str(cache)})  # fmt: skip
    assert done.stdout == "0\n" and len(list(cache.rglob("*.nbi"))) == 2, done.stderr
    assert not (place.parent / "fired").exists() and not (place.parent / "opened").read_text()


def test_a_version_that_reads_the_file_in_another_way_is_not_run():
    code = compile("import os\nos.mark = True", "<config>", "exec")
    with pytest.raises(ImportError, match=r"reads \.numba_config\.yaml in a way that marius_oac does not know"):
        present_folder._blind(code, "numba.core.config")
    assert not hasattr(os, "mark")
