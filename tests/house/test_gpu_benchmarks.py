"""The measurements for a GPU: all of them run without one, and the page claims nothing that no GPU has done."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import correct, wheels
from benchmarks.gpu.page import EMPTY, page
from benchmarks.gpu.part import Part, Table
from benchmarks.gpu.place import Place
from benchmarks.gpu.results import FILE, Results, read
from marius_oac.pipeline.streams import HostStreams
from tests.pipeline.held_streams import HeldStreams

ROOT = Path(__file__).parents[2]
CPU = Place(torch.device("cpu"), small=True)
TABLE = Table("speed", "Speed", "Of light.", {"who": "who", "rate": "rate"})


def module(run, doc="A part.", tables=(TABLE,)):
    return SimpleNamespace(__doc__=doc, SECONDS=10, TABLES=list(tables), run=run)


def a_part(folder, seconds=10.0):
    return Part(CPU, Results(folder, {"run": "a", "device": "cpu", "small": True}), folder, seconds, None)


def kinds(folder):
    return [line["kind"] for line in read(folder / FILE)]


@pytest.mark.slow
def test_all_parts_run_without_a_gpu(tmp_path):
    """Every table gets a row, none of them has failed, and what must be the same is."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = read(tmp_path / FILE)
    assert {line["kind"] for line in lines} == {"run", "row", "end"}
    assert [line["part"] for line in lines if line["kind"] == "run"] == list(command.PARTS)
    assert sum(line["found"].get("replaced", 0) > 0 for line in lines if line.get("name") == "same bits") > 5
    assert sum(line["found"].get("passed", 0) for line in lines if line.get("name") == "tests") > 0
    assert [line["found"]["same"] for line in lines if line.get("name") == "same bits"].count(False) == 1
    assert [line["found"]["kills"] for line in lines if line.get("name") == "soak"] == [0, 2]
    assert page("#", command.tables(), lines).count(EMPTY) == EMPTIES


EMPTIES = sum(len(part.TABLES) for part in command.PARTS.values()) + 1
"""Tables, and the list of runs."""


def test_tests_are_counted_also_where_they_were_stopped():
    said = "tests/a.py::one[x y] PASSED [ 9%]\ntests/a.py::two FAILED [ 19%]\ntests/a.py::three SKIPPED (why) [ 20%]\n"
    found = correct.counted(said + "tests/a.py::four ", None)
    assert found == {"passed": 1, "failed": 1, "skipped": 1, "which": "two", "right": False}
    assert correct.counted(said[:30], None)["right"] and not correct.counted("", None)["right"]
    stopped = correct.counted(said[:30], "stopped after 9 s")
    assert stopped["which"] == "stopped after 9 s" and not stopped["right"] and stopped["passed"] == 1


def test_part_1_runs_all_tests_of_the_device():
    marked = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")
              if "pytest.mark.device" in path.read_text("utf-8")}  # fmt: skip
    assert marked - {"tests/house/test_gpu_benchmarks.py"} == set(correct.FILES)


def test_the_page_is_made_of_the_results():
    assert (ROOT / "benchmarks" / "gpu" / "README.md").read_text("utf-8") == command.the_page()


@pytest.mark.parametrize("found", [ValueError("no"), {}, {"rate": 2.0, "right": False}])
def test_a_rehearsal_fails_with_a_part_of_it(monkeypatch, tmp_path, found):
    def run(part):
        part.measure("speed", {"who": "light"}, lambda: {"rate": 1.0})
        part.measure("speed", {"who": "dark"}, lambda: raised(found) if isinstance(found, Exception) else found)

    monkeypatch.setattr(command, "PARTS", {1: module(run)})
    assert command.rehearse(tmp_path, "commit", None) == 1
    wrong = "row" if isinstance(found, dict) and found else "error"
    assert kinds(tmp_path) == ["run", "row", wrong, "end"]


def raised(error):
    raise error


def test_a_rehearsal_fails_where_a_part_breaks_or_a_table_stays_empty(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "PARTS", {1: module(lambda part: raised(OSError("gone")))})
    assert command.rehearse(tmp_path, "commit", None) == 1
    assert kinds(tmp_path) == ["run", "error", "end"]
    other = Table("colour", "Colour", "Of light.", {"who": "who"})
    fine = module(lambda part: part.measure("speed", {}, lambda: {"rate": 1}))
    monkeypatch.setattr(command, "PARTS", {1: fine})
    assert command.rehearse(tmp_path, "commit", None) == 0
    monkeypatch.setattr(command, "PARTS", {1: fine, 2: module(fine.run, tables=[other])})
    assert command.rehearse(tmp_path, "commit", None) == 1


def test_a_part_without_time_says_what_is_missing(tmp_path):
    part = a_part(tmp_path, seconds=0.0)
    assert part.measure("speed", {"who": "light"}, lambda: pytest.fail("it began")) is None
    part = a_part(tmp_path, seconds=100.0)
    assert part.measure("speed", {"who": "light"}, lambda: pytest.fail("it began"), needs=101.0) is None
    assert part.measure("speed", {"who": "light"}, lambda: {"rate": 3}, needs=50.0) == {"rate": 3}
    assert [kind for kind in kinds(tmp_path) if kind != "run"] == ["missing", "missing", "row"]


def test_rows_are_there_when_a_command_is_killed(tmp_path):
    part = a_part(tmp_path)
    part.measure("speed", {}, lambda: {"rate": 3})
    with (tmp_path / FILE).open("a") as file:
        file.write('{"kind": "row", "na')
    assert kinds(tmp_path) == ["run", "row"]


def test_a_part_without_a_gpu_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "--part", "1", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert stop.value.code == 2 and "torch finds none here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def run_line(name, device="NVIDIA H200", small=False):
    return {"kind": "run", "run": name, "part": 1, "device": device, "small": small, "commit": f"of-{name}"}


def row(run, who, rate):
    return {"kind": "row", "run": run, "name": "speed", "where": {"who": who}, "found": {"rate": rate}, "seconds": 1}


def shown(lines):
    return page("# Page", {"Part 1": [TABLE]}, lines)


def test_the_page_shows_the_newest_row_of_a_gpu():
    missing = {"kind": "missing", "run": "b", "name": "speed", "where": {"who": "light"}, "why": "out of time"}
    found = shown([run_line("a"), row("a", "light", 3), run_line("b"), row("b", "light", 4), missing])
    assert "| light | 4 | B |" in found and "| light | 3" not in found and EMPTY not in found
    assert "of-a" in found and "of-b" in found
    other = shown([run_line("a"), row("a", "light", 3), run_line("b", "NVIDIA H100"), row("b", "light", 4)])
    assert "| light | 3 | A |" in other and "| light | 4 | B |" in other


def test_the_page_says_what_is_not_measured():
    missing = {"kind": "missing", "run": "a", "name": "speed", "where": {"who": "light"}, "why": "out of time"}
    failed = {"kind": "error", "run": "a", "name": "speed", "where": {"who": "dark"}, "error": "ValueError('a|b')"}
    found = shown([run_line("a"), missing, failed])
    assert f"| light | {EMPTY}: out of time | A |" in found
    assert f"| dark | {EMPTY}: failed: ValueError('a/b') | A |" in found
    assert f"| {EMPTY} |  |  |" in shown([])


@pytest.mark.parametrize("run", [run_line("a", small=True), run_line("a", device="cpu")])
def test_no_figure_of_a_rehearsal_comes_to_the_page(run):
    assert shown([run, row("a", "light", 3)]) == shown([])


def test_streams_are_held_before_their_work_and_before_their_events():
    told = []

    class Told(HostStreams):
        @contextmanager
        def on(self, stream):
            told.append(f"on {stream}")
            yield
            told.append(f"off {stream}")

        def record(self, stream):
            told.append(f"record {stream}")

    streams = HeldStreams(Told(), lambda cycles: told.append("held"))
    for _ in range(50):
        with streams.on("up"):
            told.append("work")
            streams.record("up")
    text = " ".join(told)
    assert "on up held work" in text and "on up held off up record up" in text
    assert "work held" not in text and 20 < told.count("held") < 80


def test_results_name_their_run_and_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "PARTS", {7: module(lambda part: part.measure("speed", {}, lambda: {"rate": 1}))})
    assert command.measure(7, CPU, tmp_path, "abc", None) == 0
    first, *others = read(tmp_path / FILE)
    assert first.items() >= {"part": 7, "commit": "abc", "device": "cpu", "torch": torch.__version__}.items()
    assert {line["run"] for line in others} == {first["run"]}


def test_wheels_take_the_place_of_their_other_versions_alone(tmp_path):
    there, new = tmp_path / "there", tmp_path / "new"
    for name in ("there/a_b-1.0-py3-none-any.whl", "there/a_bc-1.0-py3-none-any.whl", "new/a_b-2.0-py3-none-any.whl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    put = wheels.put(new / "a_b-2.0-py3-none-any.whl", there)
    assert sorted(there.iterdir()) == [put, there / "a_bc-1.0-py3-none-any.whl"] and not list(new.iterdir())
