"""The cases that run in processes of their own, as a shell starts them: signals, limits, streams, surroundings."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.battery.cases import filled, listing, wrong_lines
from tests.battery.tables import PROCESSES

SECONDS = 240
ROOT = Path(__file__).parents[2]


def left_of(session: int) -> list[psutil.Process]:
    """Processes of a session that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", PROCESSES, ids=lambda case: case.name)
def test_case(case, specimens, tmp_path):
    place, temporary, home = (tmp_path / name for name in ("here", "temporary", "home"))
    for folder in (place, temporary, home):
        folder.mkdir()
    standing = [Path(specimens[name]) for name in ("graph", "run", "classes", "clicks")]
    specimens = {**specimens, "here": str(place), "root": str(ROOT), "python": sys.executable}
    specimens["oac"] = f"{sys.executable} -m marius_oac"
    case.write(place, specimens)
    variables = {**os.environ, "TMPDIR": str(temporary), "HOME": str(home), "PYTHONPATH": str(ROOT)}
    variables |= {name: filled(value, specimens) for name, value in case.variables.items() if value is not None}
    variables = {name: value for name, value in variables.items() if case.variables.get(name, "") is not None}
    before = listing(place, temporary, *standing)
    with open(tmp_path / "said", "w+") as said:
        process = subprocess.Popen(
            ["bash", "-c", filled(case.command, specimens)],
            cwd=place, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        finally:
            left = left_of(process.pid)
            for each in left:
                each.kill()
            process.wait()
        said.seek(0)
        text = said.read()
    assert (code, wrong_lines(case, text, specimens), left) == (case.code, None, []), text
    after = listing(place, temporary, *standing)
    made = {str(path) for pattern in case.made for path in place.glob(pattern)}
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == made
