"""Reports of runs: what a page says, that it is sound and needs nothing else, and what it refuses to read."""

import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from marius_oac.cli.commands import main
from marius_oac.errors import InputError
from marius_oac.evaluation.quality import Bin, Group, Plane, Quality
from marius_oac.insight.report import curves, history, page
from marius_oac.insight.report.comparison import bits, config_differences
from marius_oac.insight.report.curves import Course, binned, curve
from marius_oac.insight.report.details import nodes
from marius_oac.insight.report.drawing import check_matplotlib, colour, draw
from marius_oac.insight.report.history import read_history
from marius_oac.insight.report.learning import what
from marius_oac.insight.report.page import write_report
from marius_oac.insight.report.parts import Report, epoch_table
from marius_oac.insight.report.quality import quality
from marius_oac.insight.report.rows import rows
from marius_oac.insight.report.speed import speed
from marius_oac.pipeline.bound import bound
from marius_oac.pipeline.setting import Setting
from marius_oac.runs.folder.folder import RunFolder
from tests.graphs import tiny_config

EVIL = "<script>alert(1)</script>&\"'$x^2$\u202e"


def interval(epoch, batch, loss, **more):
    line = {"kind": "interval", "epoch": epoch, "batch": batch, "loss": loss, "seconds": 1.0}
    stages = {"plan": 0.1, "read": 0.2, "compute": 0.9, "write": 0.05, EVIL: 0.5}
    line |= {"examples_per_second": 320.0, "replaced_rows": 40, "stage_seconds": stages}
    return line | {"channel_fill": {"planned": 2.0, "read": 0.5, EVIL: 1.0}} | more


def made_up(path, graph, *overrides, losses=(3.0, 2.5, 2.0, 1.5), ended="a" * 64, lines=(), summary=()):
    """The folder of a run that never was: two epochs of twenty batches, in four intervals."""
    folder = RunFolder.create(path, tiny_config(graph, *overrides), "a graph")
    setting = {"machine.in_flight": 4} | {
        f"machine.workers.{each}": 1 for each in ("plan", "read", "upload", "download", "write")
    }
    for number, loss in enumerate(losses):
        epoch = number // 2
        folder.metrics.add(interval(epoch, 10 * number + 9, loss))
        if number % 2:
            batch = 10 * number + 9
            folder.metrics.add(interval(epoch, batch, loss, kind="epoch", seconds=2.0) | setting)
            folder.metrics.add(
                {"kind": "evaluation", "split": "valid", "epoch": epoch, "batch": batch, "filtered.mrr": 0.1 * number}
            )
    for line in lines:
        folder.metrics.add(line)
    if ended:
        parts = {"host": {"tables": 5 << 20, EVIL: 3 << 20}, "disk": {"checkpoints": 1 << 20}}
        folder.write_summary(
            {"checkpoint": "0000000040", "training.epochs": 2, "training.batches": 40, "training.stopped_early": False,
             "training.seconds": 4.0, "tables.entities.sha256": ended, "test.filtered.mrr": 0.25, EVIL: 1.0,
             "machine.memory_plan": parts, "memory.peak_rss_bytes": 7 << 20, "machine": EVIL, **dict(summary)}
        )  # fmt: skip
    return path


class Page(HTMLParser):
    """The elements of a page, with their attributes; every one that is opened must be closed."""

    VOID = {"meta", "link", "input", "wbr"}

    def __init__(self, text):
        super().__init__()
        self.found, self._open, self.texts = [], [], []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, *tags):
        return [attrs for tag, attrs in self.found if tag in tags]


@pytest.fixture
def one_axis(monkeypatch):
    """Draws on one axis alone, which takes a third of the time."""
    for name in ("seconds", "epochs"):
        monkeypatch.delitem(curves.AXES, name)


def test_a_page_is_sound_needs_nothing_else_and_believes_no_name(graph, tmp_path, one_axis, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made_up(tmp_path / EVIL.replace("/", "|"), graph)
    made_up(tmp_path / "b", graph, "seed=7", losses=(3.0, 2.5, 2.0, 1.75), ended="b" * 64)
    path = write_report([EVIL.replace("/", "|"), "b"])
    assert path.name == "report.html" and path.parent.name == EVIL.replace("/", "|")
    text = path.read_text()
    assert len(text) < 3 << 20 and "\u202e" not in text and "Infinity" not in text and "nan" not in text
    page = Page(text)
    tags = {tag for tag, _ in page.found}
    assert not tags & {"script", "iframe", "object", "embed", "img", "form", "image", "foreignobject"}
    assert "default-src 'none'" in page.of("meta")[1]["content"]
    names = {name for _, attrs in page.found for name in attrs}
    assert not any(name.startswith("on") for name in names) and "src" not in names
    links = [attrs.get("href", attrs.get("xlink:href", "#")) for _, attrs in page.found]
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert all(link == "data:," or (link[0] == "#" and link[1:] in {"", *ids}) for link in links)
    assert not re.search(r"url\((?!#)|@import|https?://", re.sub(r'xmlns[:a-z]*="[^"]*"', "", text))
    assert {found for found in re.findall(r"url\(#([^)]*)\)", text)} <= set(ids)
    defined = set(re.findall(r"(--[a-z0-9-]+):", text))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", text)) <= defined and "#0100" not in text and "#0101" not in text


def test_a_page_can_be_read_by_a_screen_reader(graph, tmp_path, one_axis):
    made_up(tmp_path / "a", graph)
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "new" / "page.html")]) == 0
    page = Page((tmp_path / "new" / "page.html").read_text())
    heads = [int(tag[1]) for tag, _ in page.found if re.fullmatch("h[1-6]", tag)]
    assert (
        heads[0] == 1
        and heads.count(1) == 1
        and all(later <= sooner + 1 for sooner, later in zip(heads, heads[1:], strict=False))
    )
    images = [attrs for _, attrs in page.found if attrs.get("role") == "img"]
    assert images and all("from" in each["aria-label"] or "." in each["aria-label"] for each in images)
    assert all(attrs.get("aria-hidden") == "true" for attrs in page.of("svg"))
    assert len(page.of("caption")) == len(page.of("table")) and all("scope" in attrs for attrs in page.of("th"))
    assert all(
        attrs.get("tabindex") == "0" and attrs["aria-label"]
        for attrs in page.of("div")
        if attrs.get("role") == "region"
    )
    said = " ".join(" ".join(page.texts).split())
    assert "complex of dimension 8" in said and "40 batches" in said and "0.25" in said
    assert "Disk, over" not in said and "Nodes" not in said and "Comparison" not in said and "Updates lost" not in said
    assert "8,192 KiB of host memory were planned, and 7,168 KiB were used at most (88%)" in said


def test_what_bound_a_run_is_what_it_says_at_its_end(graph, tmp_path):
    run = read_history(made_up(tmp_path / "a", graph))
    stages = {"plan": 0.4, "read": 0.8, "compute": 3.6, "write": 0.2}
    assert run.bound().line == bound(stages, 4.0, Setting(4)).line and "compute was busy 90%" in run.bound().line
    assert list(run.stage_seconds())[:4] == list(stages) and (run.batches, run.seconds) == (40, 4.0)
    lacking = made_up(tmp_path / "lacking", graph)
    text = (lacking / "metrics.jsonl").read_text().replace("machine.workers.plan", "x")
    (lacking / "metrics.jsonl").write_text(text)
    assert read_history(lacking).bound() is None, "without the numbers of threads nothing is known"


@pytest.mark.parametrize(
    ("losses", "ended", "said"),
    [
        ((3.0, 2.5, 2.0, 1.5), "a" * 64, "the same bits: the checksums"),
        ((3.0, 2.5, 2.0, 1.5), "b" * 64, "different bits, though no loss differs"),
        ((3.0, 2.5, 2.0, 1.5), "", "the same losses so far"),
        ((3.0, 2.5), "b" * 64, "the same losses as long as both trained: one has 40 batches, the other 20"),
        ((3.0, 2.5, 2.0, 1.25), "b" * 64, "they part in epoch 2, after batch 30, where both losses are equal"),
        ((3.5, 2.5, 2.0, 1.5), "b" * 64, "they part in epoch 1, from the first batches on"),
        ((), "", "nothing to compare"),
    ],
)  # fmt: skip
def test_whether_runs_have_the_same_bits(graph, tmp_path, losses, ended, said):
    first = read_history(made_up(tmp_path / "a", graph))
    second = read_history(made_up(tmp_path / "b", graph, losses=losses, ended=ended))
    assert said in bits(first, second)


def test_the_keys_that_differ(graph, tmp_path):
    runs = [
        read_history(made_up(tmp_path / name, graph, *more, losses=()))
        for name, more in (
            ("a", ()),
            ("b", ("seed=5",)),
            ("c", ("training.early_stopping={patience: 3}", "model.decoder=distmult")),
        )
    ]
    found = {key: values for key, *values in config_differences(runs)}
    assert found["seed"] == ["0", "5", "0"] and found["model.decoder"] == ["complex", "complex", "distmult"]
    assert {key.partition(".early")[0] for key in found} == {"seed", "model.decoder", "training"}
    assert found["training.early_stopping.patience"] == ["", "", "3"]
    assert what(runs[2]).startswith("`distmult` of dimension 8")


def test_bad_folders_are_told_in_a_line(graph, tmp_path, capsys, monkeypatch):
    good = made_up(tmp_path / "good", graph, losses=(1.0, 1.0))

    def told(name, text=None, **more):
        path = made_up(tmp_path / name, graph, **({"losses": (1.0,), "ended": ""} | more))
        if text is not None:
            (path / "metrics.jsonl").write_text(text)
        assert main(["report", str(path), "--out", str(tmp_path / f"{name}.html")]) == 2
        assert not (tmp_path / f"{name}.html").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    def text(**more):
        return json.dumps(interval(0, 9, 1.0) | more) + "\n"

    assert "loss" in told("a", text(loss="high")) and "seconds" in told("b", text(seconds=-1.0))
    assert "stage_seconds" in told("c", text(stage_seconds={"plan": "x"})) and "epoch" in told("d", text(epoch=-1))
    assert "batches are not in order" in told("e", text(batch=19) + text())
    line = {"kind": "evaluation", "epoch": 0, "batch": 9}
    assert "split must be a valid string" in told("f", text() + json.dumps(line | {"split": 5}) + "\n")
    many = {f"x{number}": 1.0 for number in range(1001)}
    assert "1,001 values" in told("g", text() + json.dumps(line | {"split": "valid"} | many) + "\n")
    for number, name in enumerate(("metrics.jsonl", "config.yaml", "run.json", "summary.json")):
        path = made_up(tmp_path / f"link{number}", graph, losses=(1.0,))
        (path / name).unlink()
        (path / name).symlink_to(good / name)
        assert main(["report", str(path)]) == 2
        assert f"{name}: is a symbolic link that leads out of the run's folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2 and "is no run" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(history, "MOST_BYTES", 10)
        assert main(["report", str(good)]) == 2 and "is larger than" in capsys.readouterr().err
    assert main(["report", *[str(good)] * 9]) == 2 and "1 to 8 runs fit" in capsys.readouterr().err
    assert main(["report", str(good), "--out", str(tmp_path)]) == 2 and "is a folder" in capsys.readouterr().err
    (good / "report.html").symlink_to(tmp_path / "elsewhere")
    assert main(["report", str(good)]) == 2 and not (tmp_path / "elsewhere").exists()


def test_settings_of_matplotlib_do_not_change_a_drawing():
    """Those of a folder could have LaTeX run."""
    import matplotlib

    plain = draw("a", lambda axes: axes.plot([0, 1], [1, 2]))
    with matplotlib.rc_context({"text.usetex": True, "lines.linestyle": ":", "axes.labelpad": 40, "font.size": 30}):
        assert draw("a", lambda axes: axes.plot([0, 1], [1, 2])) == plain


def test_libraries_that_are_missing_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"needs Matplotlib: pip install '/path/to/marius_oac\[report\]'"):
        check_matplotlib()


def test_curves_keep_means_and_leave_out_what_is_no_number(graph, tmp_path):
    runs = [read_history(made_up(tmp_path / "a", graph, losses=(1.0, 1.0, 1.0)))]
    course = Course.of(runs[0])
    assert course.batches.tolist() == [0, 10, 20, 30] and course.seconds.tolist() == [0, 1, 2, 3]
    assert course.at("epochs", np.array([0.0, 10, 20, 30])).tolist() == [0, 0.5, 1, 1.5]
    assert course.at("seconds", np.array([5.0, 25])).tolist() == [0.5, 2.5]
    values = np.random.default_rng(0).normal(size=1000)
    thinned = curve(runs, 0, np.arange(1000.0), values)
    assert len(thinned.values) == curves.MOST_POINTS and thinned.batches[[0, -1]].tolist() == [4, 999]
    assert thinned.values == pytest.approx(values.reshape(200, 5).mean(axis=1))
    odd = curve(runs, 0, [1, 2, 3, 4, 5], [1.0, None, float("inf"), 1e300, 2.0])
    assert odd.values.tolist() == [1.0, 2.0] and odd.batches.tolist() == [1, 5] and odd.is_drawn
    assert not curve(runs, 0, [1], [1.0]).is_drawn


def test_bins_add_up():
    cuts, sums = binned(np.array([np.arange(11.0), np.ones(11)]), 4)
    assert cuts.tolist() == [0, 2, 5, 8, 11] and sums.tolist() == [[1, 9, 18, 27], [2, 3, 3, 3]]
    assert binned(np.ones((1, 2)), 4)[0].tolist() == [0, 1, 2]


def test_a_figure_has_the_pages_colours_and_its_numbers_unchanged():
    def paint(axes):
        axes.plot([0.12345, 1], [1, 2], color=colour("run-3"))
        axes.set_title("<b>$a$ 0.12345 --> ]]>")

    drawn = draw("x", paint)
    assert "var(--run-3)" in drawn and "&lt;b&gt;$a$ 0.12345 --&gt; ]]&gt;" in drawn
    assert not re.search("<g id=|<text[^>]*font-family", drawn) and 'viewBox="0 0 700 250"' in drawn
    assert draw("x", paint) == drawn, "the same each time"


def test_nodes_and_changes_of_the_mode(graph, tmp_path):
    change = {"kind": "mode", "epoch": 0, "batch": 9, "mode": "gba", "was": "sync", "switches": True, "reason": EVIL}
    path = made_up(tmp_path / "a", graph, lines=[change, change | {"switches": False}], summary={"dense.syncs": 5.0})
    assert nodes(Report([read_history(path)])) is None
    (path / "nodes").mkdir()
    section = nodes(Report([read_history(path)]))
    totals, modes = section.blocks
    assert (
        totals.header == ["what", "value"]
        and ["dense.syncs", "5"] in totals.rows
        and modes.rows == [["11", "gba", EVIL]]
    )


def test_what_was_measured_with_the_models(graph, tmp_path, monkeypatch):
    groups = [Group(EVIL if number else "a`b", 30 - number, number / 30) for number in range(25)]
    bins = [Bin(10, number / 20, number / 25) for number in range(20)]
    found = Quality("test", 1234, groups, groups[:3], bins, Plane(np.eye(50, 2), (0.5, 0.25), 99))
    paths = [made_up(tmp_path / name, graph) for name in "ab"]
    runs = [read_history(path) for path in paths]
    assert quality(Report(runs)) is None
    section = quality(Report(runs, [found, Quality("", 0)]))
    assert section.sentences == ["Run A: Measured on answers of 1,234 edges of `test`."]
    both = [each.title for each in quality(Report(runs, [found, found])).blocks]
    assert [title[:6] for title in both] == ["Run A:", "Run B:"] * 4 and both[1] == "Run B: MRR by relation"
    relations, degrees, calibration, plane = section.blocks
    assert "from 0 (a'b) to 0.8" in relations.words and "the 20 with the most answers of 25" in relations.words
    assert len(relations.table.rows) == 25 and degrees.table.rows[1] == [EVIL, "0.03333", "29"]
    assert (
        "the mean prediction is 0.475, and 0.38 are clicks" in calibration.words and len(calibration.table.rows) == 20
    )
    assert "50 of 99 rows" in plane.words and plane.drawings[""].count("<use") > 50
    drawn = relations.drawings[""]
    assert "&lt;script" in drawn and "<script" not in drawn and drawn.count("var(--stage-0)") == 20
    measured = []
    monkeypatch.setattr(page, "render", lambda report: str(report.qualities))
    write_report(paths, tmp_path / "page.html", lambda path: measured.append(path) or found)
    assert measured == paths and main(["report", str(paths[0]), "--trust"]) == 2


def test_what_compute_includes_is_told_where_compute_is_said_to_bind(graph, tmp_path):
    more = "Here compute includes `validate`, which the same thread does."
    for name, wait, plan, told in [("a", 0.3, 0.1, True), ("b", 0.0, 0.1, False), ("c", 0.3, 1.9, False)]:
        path = made_up(tmp_path / name, graph)
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            if line["kind"] == "interval":
                line["stage_seconds"] = {"plan": plan, "validate": wait, "compute": 0.9}
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        stages = next(each for each in speed(Report([read_history(path)])).blocks if "per stage" in each.title)
        assert "Bound by" in stages.words and (more in stages.words) == told, stages.words


def test_amounts_begin_at_0(graph, tmp_path):
    report = Report([read_history(made_up(tmp_path / "a", graph))])
    for figure in (speed(report).blocks[0], rows(report).blocks[0]):
        for drawing in figure.drawings.values():
            assert re.search(r"<text[^>]*>0</text>", drawing), figure.title


def test_a_long_table_by_epoch_is_thinned_and_says_so(graph, tmp_path):
    report = Report([read_history(made_up(tmp_path / "a", graph))])
    table = epoch_table(report, "t", [{epoch: 0.5 for epoch in range(1, 1002)}])
    assert table.caption == "t, every 6 epochs" and len(table.rows) < 200
    assert [row[0] for row in table.rows[:2]] == ["1", "7"] and table.rows[-1] == ["1,001", "0.5"]
    assert epoch_table(report, "t", [{1: 0.5, 2: None}]).rows == [["1", "0.5"], ["2", ""]]
