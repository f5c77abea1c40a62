"""The measurements for a GPU: all of them run without one, a call ends in its time whatever hangs, and the page claims
nothing that no GPU has done."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import calls, device_tests, kernels, triton_cache
from benchmarks.gpu.bounded import bounded
from benchmarks.gpu.calls import CALLS, PARTS, Call, Command, Step, run_call
from benchmarks.gpu.page import EMPTY, page
from benchmarks.gpu.part import Missing, Part, Table, once, run_part
from benchmarks.gpu.place import Place
from benchmarks.gpu.results import FILE, Results, append, read
from marius_oac.kernels.cpu import decoders
from marius_oac.models.link_prediction import fused
from marius_oac.pipeline.streams import HostStreams
from tests.pipeline.held_streams import HeldStreams

ROOT = Path(__file__).parents[2]
CPU = Place(torch.device("cpu"), small=True)
TABLE = Table("speed", "Speed", "Of light.", {"who": "who", "rate": "rate"})


def module(*measurements, before=lambda part: None):
    """A part that measures: who, and what is called for it."""

    def run(part):
        before(part)
        for who, find in measurements:
            part.measure("speed", {"who": who}, find)

    return SimpleNamespace(__doc__="A part.", SECONDS=10, TABLES=[TABLE], run=run)


def a_part(folder, seconds=10.0, only=()):
    results = Results(folder, {"run": "a", "device": "cpu", "small": True})
    return Part(CPU, results, folder, seconds, None, only), results


def fine():
    return {"rate": 3}


def raised(error):
    raise error


def hung():
    threading.Event().wait()


def kinds(folder):
    return [line["kind"] for line in read(folder / FILE)]


def called(monkeypatch, folder, steps, seconds=10.0, **parts):
    """The exit code of a call, and of each line of its results the kind, who, and why it is missing."""
    monkeypatch.setattr(calls, "PARTS", parts)
    monkeypatch.setattr(calls, "MARGIN", 0.0)
    code = run_call(Command(CPU, folder, "commit"), Call(seconds, steps), time.monotonic())
    lines = [line for line in read(folder / FILE) if line["kind"] not in ("run", "plan", "end")]
    return code, [(line["kind"], line["where"].get("who"), line.get("why")) for line in lines]


@pytest.mark.slow
def test_both_calls_run_without_a_gpu(tmp_path):
    """All of their measurements get a row, none has failed, and what must be the same is."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    lines = read(tmp_path / FILE)
    late = [line for line in lines if "out of time" in line.get("why", "") or "killed after" in line.get("why", "")]
    late += [line for line in lines if "time was up" in line.get("found", {}).get("which", "")]
    assert done.returncode == 0 or late, done.stdout + done.stderr
    if late:
        pytest.skip(f"the machine is too busy for a rehearsal: {late}")
    assert {line["kind"] for line in lines if "carried" not in line.get("why", "")} == {"run", "plan", "row", "end"}
    steps = [step.part for call in CALLS.values() for step in call.steps]
    assert [line["part"] for line in lines if line["kind"] == "run"] == steps
    rows = [line for line in lines if line["kind"] == "row"]
    same = [line["found"] for line in rows if line["name"] == "same bits"]
    assert [each["same"] for each in same].count(False) == 1 and sum(each["replaced"] > 0 for each in same) > 4
    assert all(line["found"]["passed"] for line in rows if line["name"] == "tests")
    assert page("#", command.tables(), lines).count(EMPTY) == EMPTIES


@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(set(PARTS) - {step.part for call in CALLS.values() for step in call.steps}))
def test_the_other_parts_run_without_a_gpu(tmp_path, part):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--part", part, "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in read(tmp_path / FILE) if line["kind"] == "row"]
    assert {line["name"] for line in rows} == {table.name for table in PARTS[part].TABLES}
    assert set(kinds(tmp_path)) == {"run", "plan", "row", "end"}
    assert [line["found"]["kills"] for line in rows if line["name"] == "soak"] in ([], [0, 2])


EMPTIES = sum(len(part.TABLES) for part in PARTS.values()) + 1
"""Tables, and the list of runs."""


def test_the_calls_take_parts_that_there_are_in_their_time():
    for call in CALLS.values():
        assert sum(step.seconds for step in call.steps) <= call.seconds - 5
        assert {step.part for step in call.steps} <= set(PARTS)
    assert [call.seconds for call in CALLS.values()] == [150, 300]


@pytest.mark.parametrize("number", CALLS)
def test_a_plan_has_all_that_a_call_names_and_takes_no_time(tmp_path, number):
    gpu = Place(torch.device("meta"), small=False)
    for step in CALLS[number].steps:
        began, part = time.process_time(), a_part(tmp_path, only=step.only)[0]
        part.place = gpu
        planned = part.plan(PARTS[step.part])
        texts = [f"{name}: {where}" for name, where in planned]
        assert planned and all(any(each in text for text in texts) for each in step.only)
        assert time.process_time() - began < 1
    if number == 2:
        _check_what_comes_first(gpu, tmp_path)


def _check_what_comes_first(gpu, folder):
    """The most telling first, as a part may be cut off anywhere."""

    def first(name, count):
        part = a_part(folder)[0]
        part.place = gpu
        return [where for _, where in part.plan(PARTS[name])[:count]]

    assert [each["model"] for each in first("bits", 2)] == ["ComplEx, `async`: must differ", "ComplEx"]
    assert [(each["batch"], each["precision"]) for each in first("kernels", 3)] == [
        (10_000, precision) for precision in ("float32", "tf32", "bfloat16")
    ]
    pipelines = [each for each in first("steps", 99) if "nodes" in each]
    assert [(each["nodes"], each["batch"], each["workers"]) for each in pipelines[:2]] == [
        (1_000_000, 10_000, 4), (1_000_000, 50_000, 4)
    ]  # fmt: skip
    assert [each["workers"] for each in first("big_table", 1)] == [8]


def test_tests_are_counted_also_where_they_were_stopped():
    said = ("[gw0] [  9%] PASSED tests/a.py::one[x y] \n[gw11] [ 19%] FAILED tests/a.py::two \n"
            "[gw1] [100%] SKIPPED tests/a.py::three \n")  # fmt: skip
    found = device_tests.counted(said + "tests/a.py::four ", None)
    assert found == {"passed": 1, "failed": 1, "skipped": 1, "which": "two", "right": False}
    assert device_tests.counted(said[:40], None)["right"] and not device_tests.counted("", None)["right"]
    stopped = device_tests.counted(said[:40], "stopped")
    assert stopped["which"] == "stopped" and not stopped["right"] and stopped["passed"] == 1
    crashed = device_tests.counted(said[:40] + "worker 'gw0' crashed while running 'tests/a.py::two'\n", None)
    assert crashed["which"] == "crash: two" and not crashed["right"]


def test_tests_of_the_device_are_run_in_groups():
    marked = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")
              if "pytest.mark.device" in path.read_text("utf-8")}  # fmt: skip
    mine = {file for group in device_tests.GROUPS.values() for file in group.files}
    assert marked - {"tests/house/test_gpu_benchmarks.py"} == mine
    named = [group.named for group in device_tests.GROUPS.values() if group.named]
    assert named == ["complex or dcnv2", "not (complex or dcnv2)"], "both have the whole file"


def test_the_page_is_made_of_the_results():
    assert (ROOT / "benchmarks" / "gpu" / "README.md").read_text("utf-8") == command.the_page()


@pytest.mark.parametrize(
    "find, kind", [(lambda: raised(ValueError("no")), "error"), (dict, "error"), (lambda: {"right": False}, "row")]
)
def test_a_call_fails_with_a_measurement_and_goes_on(monkeypatch, tmp_path, find, kind):
    part = module(("light", fine), ("dark", find), ("dim", fine))
    code, lines = called(monkeypatch, tmp_path, [Step("a", 5), Step("b", 5)], a=part, b=module(("late", fine)))
    assert code == 1
    assert lines == [("row", "light", None), (kind, "dark", None), ("row", "dim", None), ("row", "late", None)]


def test_a_call_fails_where_a_part_breaks_or_finds_nothing(monkeypatch, tmp_path):
    broken = module(before=lambda part: raised(OSError("gone")))
    assert called(monkeypatch, tmp_path / "a", [Step("a", 5)], a=broken) == (1, [("error", None, None)])
    assert called(monkeypatch, tmp_path / "b", [Step("a", 5, ["dark"])], a=module(("light", fine))) == (1, [])
    assert called(monkeypatch, tmp_path / "c", [Step("a", 5)], a=module(("light", fine)))[0] == 0


def test_only_those_with_the_text_are_measured(tmp_path):
    part, results = a_part(tmp_path, only=["who dim", "bright"])
    some = module(("light", fine), ("dim", fine), ("bright", fine))
    run_part(some, part, results)
    lines = read(tmp_path / FILE)
    assert [line["where"]["who"] for line in lines if line["kind"] == "row"] == ["dim", "bright"]
    assert lines[1]["measurements"] == [["speed", {"who": "dim"}], ["speed", {"who": "bright"}]]
    part, results = a_part(tmp_path / "all", only=["speed: "])
    run_part(some, part, results)
    assert part.rows == 3


def test_a_part_without_time_says_what_is_missing(tmp_path):
    part, _ = a_part(tmp_path, seconds=0.0)
    part.measure("speed", {"who": "light"}, lambda: pytest.fail("it began"))
    part, _ = a_part(tmp_path, seconds=100.0)
    part.measure("speed", {"who": "light"}, lambda: pytest.fail("it began"), needs=101.0)
    part.measure("speed", {"who": "light"}, fine, needs=50.0)
    part.measure("speed", {"who": "dark"}, lambda: raised(Missing("no candle")))
    assert [(line["kind"], line.get("why")) for line in read(tmp_path / FILE) if line["kind"] != "run"] == [
        ("missing", "out of time: 0 s were left"), ("missing", "out of time: 100 s were left, 101 needed"),
        ("row", None), ("missing", "no candle"),
    ]  # fmt: skip


def test_a_part_gets_the_seconds_of_its_step(monkeypatch, tmp_path):
    left = []
    part = module(("light", lambda: {"rate": left[-1]}), before=lambda part: left.append(part.left()))
    called(monkeypatch, tmp_path, [Step("a", 300), Step("b", 400)], seconds=900, a=part, b=part)
    rates = [line["found"]["rate"] for line in read(tmp_path / FILE) if line["kind"] == "row"]
    assert 450 < rates[0] <= 500, "300 are its own, and 200 nobody's"
    assert 850 < rates[1] <= 900, "what the one before has left"


def test_a_late_start_takes_something_of_each_part(monkeypatch, tmp_path):
    left = []
    part = module(("light", lambda: {"rate": left[-1]}), before=lambda part: left.append(part.left()))
    called(monkeypatch, tmp_path, [Step("a", 300), Step("b", 100)], seconds=40, a=part, b=part)
    rates = [line["found"]["rate"] for line in read(tmp_path / FILE) if line["kind"] == "row"]
    assert 28 < rates[0] <= 30 and 30 < rates[1] <= 40


def test_a_hanging_part_is_killed_and_the_call_ends_in_time(monkeypatch, tmp_path):
    """It, and what it has started; the next part has its own seconds."""
    started = tmp_path / "started"

    def hangs():
        started.write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hung()

    moon = ("moon", lambda: raised(Missing("clouds")))
    slow = module(("light", fine), moon, ("dark", hangs), ("dim", fine))
    began = time.monotonic()
    steps = [Step("a", 1.5), Step("b", 10)]
    code, lines = called(monkeypatch, tmp_path / "out", steps, seconds=11.5, a=slow, b=module(("late", fine)))
    assert 1.4 < time.monotonic() - began < 8 and code == 1
    why = lines[2][2].removesuffix(", at this")
    assert why.startswith("killed after ")
    assert lines == [
        ("row", "light", None), ("missing", "moon", "clouds"), ("missing", "dark", f"{why}, at this"),
        ("missing", "dim", f"{why}, before it"), ("row", "late", None),
    ]  # fmt: skip
    process = int(started.read_text())
    assert not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE


def test_a_part_that_hangs_before_its_plan_or_crashes_is_missing_too(monkeypatch, tmp_path):
    stuck = module(before=lambda part: hung())
    dead = module(("light", lambda: os.kill(os.getpid(), signal.SIGKILL)))
    code, lines = called(monkeypatch, tmp_path, [Step("a", 0.5), Step("b", 5)], seconds=5.5, a=stuck, b=dead)
    assert code == 1 and [line[:2] for line in lines] == [("missing", None), ("missing", "light")]
    assert lines[0][2].startswith("killed after ") and lines[1][2] == "the process ended with -9, at this"


def test_rows_are_there_when_a_command_is_killed(monkeypatch, tmp_path):
    """kill -9 of the command in the middle of a part: the rows are there, and what it had planned; nothing runs on."""
    pid = tmp_path / "pid"

    def hangs():
        pid.write_text(str(os.getpid()))
        hung()

    part = module(("light", fine), ("dark", hangs))
    command = os.fork()
    if command == 0:
        try:
            called(monkeypatch, tmp_path, [Step("a", 60)], seconds=60, a=part)
        finally:
            os._exit(1)
    wait_for(lambda: pid.exists() and pid.read_text())
    os.kill(command, signal.SIGKILL)
    os.waitpid(command, 0)
    lines = read(tmp_path / FILE)
    assert [line["kind"] for line in lines] == ["run", "plan", "row"]
    assert [where["who"] for _, where in lines[1]["measurements"]] == ["light", "dark"]
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())))


def wait_for(there, seconds=30):
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_line_behind_one_that_was_cut_is_whole(tmp_path):
    part, _ = a_part(tmp_path)
    part.measure("speed", {}, fine)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"kind": "row", "na')
    assert kinds(tmp_path) == ["run", "row"]
    append(tmp_path / FILE, {"kind": "end"})
    append(tmp_path / FILE, {"kind": "end"})
    assert kinds(tmp_path) == ["run", "row", "end", "end"]


def test_a_process_ends_with_what_it_returns_and_an_error_is_told(capfd):
    assert [bounded(lambda: 0, 30), bounded(lambda: 7, 30), bounded(lambda: raised(ValueError("no")), 30)] == [0, 7, 1]
    assert "ValueError: no" in capfd.readouterr().err


def test_what_several_measurements_need_is_made_once_and_closed():
    made, closed = [], []

    def make():
        made.append(1)
        return closing(SimpleNamespace(close=lambda: closed.append(1)))

    with once(make) as thing:
        assert not made
        assert thing() is thing() and made == [1] and not closed
    assert closed == [1]
    with once(make):
        pass
    assert made == [1]


def test_a_tile_is_that_of_gradients_made_within():
    own = fused.tile_of(decoders.INNER, 100)
    with kernels.tiled((64, 32, 4)):
        assert fused.tile_of(decoders.INNER, 100) == fused.Tile(64, 32, own.columns, 4)
        assert fused.tile_of(decoders.INNER, 10_000) is None
    assert fused.tile_of(decoders.INNER, 100) == own
    with kernels.tiled(None):
        assert fused.tile_of(decoders.INNER, 100) == own


def test_a_carried_cache_is_found_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    triton_cache.use(tmp_path / "none")
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere" and triton_cache.folder() is None
    kernel = tmp_path / "cache" / "KEY"
    kernel.mkdir(parents=True)
    (kernel / "look.cubin").touch()
    (kernel / "__grp__look.json").write_text(json.dumps({"child_paths": {"look.cubin": "/gone/KEY/look.cubin"}}))
    (tmp_path / "cache" / triton_cache.MADE_FOR).write_text("3.6.0-abc")
    triton_cache.pack(tmp_path / "cache", tmp_path / "there" / "cache.tar.xz")
    monkeypatch.chdir(tmp_path / "there")
    triton_cache.use(Path("cache.tar.xz"))
    there = tmp_path / "there" / "cache"
    paths = json.loads((there / "KEY" / "__grp__look.json").read_text())["child_paths"]
    assert paths == {"look.cubin": str(there / "KEY" / "look.cubin")}
    assert triton_cache.folder() == there and triton_cache.kernels() == 1
    assert triton_cache.made_for() == "3.6.0-abc"


@pytest.mark.parametrize("words, said", [
    (["--call", "1"], "--out is needed"),
    (["--call", "1", "--out", "out", "--only", "x"], "--only and --seconds are for --part"),
    (["--call", "2", "--out", "out", "--seconds", "9"], "--only and --seconds are for --part"),
    (["--out", "out"], "one of --call, --part, --rehearse and --page is needed"),
    (["--call", "1", "--out", "out"], "torch finds none here"),
    (["--part", "bits", "--out", "out"], "torch finds none here"),
])  # fmt: skip
def test_what_can_not_be_measured_is_refused(monkeypatch, capsys, tmp_path, words, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu", *words])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert stop.value.code == 2 and said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def run_line(name, device="NVIDIA H200", small=False):
    return {"kind": "run", "run": name, "part": "bits", "device": device, "small": small, "commit": f"of-{name}"}


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
    called(monkeypatch, tmp_path, [Step("a", 5)], a=module(("light", fine)))
    first, *others = read(tmp_path / FILE)
    assert first.items() >= {"part": "a", "commit": "commit", "device": "cpu", "torch": torch.__version__}.items()
    assert {line["run"] for line in others} == {first["run"]}
