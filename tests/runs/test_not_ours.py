"""What lies in a run's folder and was not made by the program: it stays as it is, or is refused by name."""

import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from benchmarks.generate.log import LogSpec, write_day
from marius_oac import resume, train
from marius_oac.data.graphs.derived import DerivedArray, open_derived
from marius_oac.errors import InputError
from marius_oac.runs.checkpoints.retention import START, Checkpoints
from marius_oac.runtime.files.atomic import clean, remove_folder, write_atomically
from tests.click_logs import ctr_config, small_log
from tests.disk import budget, graph_config
from tests.graphs import tiny_config
from tests.run_folders import contents, says, stop_at, write_config

MORE = ("--set", "training.epochs=3", "--set", "checkpoint.keep=1")


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def treasure(tmp_path):
    """A folder of the user's, with things in it that have our names."""
    folder = tmp_path / "treasure"
    for name in ("0000000010/manifest.json", ".0000000020.unfinished/notes", "notes.txt", "0-1.pages"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return folder


@pytest.mark.parametrize("name", ["checkpoints", "tables", "nodes", "encoded", "buckets"])
@pytest.mark.parametrize("argv", [MORE, ("--checkpoint", "0000000025")])
def test_nothing_is_written_or_removed_through_a_link(run, treasure, command, name, argv):
    if (run / name).exists():
        shutil.copytree(run / name, treasure, dirs_exist_ok=True)
        shutil.rmtree(run / name)
    (run / name).symlink_to(treasure)
    before = contents(run), contents(treasure)
    code, _, err = command("resume", run, *argv)
    assert code == 2 and says(err, f"{run / name}: is a symbolic link")
    assert (contents(run), contents(treasure)) == before


STRANGE = {
    "checkpoints": ("0000000030.good/a", "0-keep-me/a", "2024-my-notes/a", "2024010112/a", "00000000301/manifest.json",
                    ".mine.unfinished/a", ".00000000300.unfinished/a", ".notes", "0000000007"),
    ".": (".draft.unfinished/a", ".config.yaml.unfinished/a", ".notes.txt.unfinished", "notes.pages",
          ".encoded-mine.unfinished/a", ".export-npy.unfinished/a"),
}  # fmt: skip


@pytest.mark.parametrize("argv", [MORE, ("--checkpoint", "0000000025", *MORE)])
def test_what_has_other_names_stays(run, treasure, command, argv):
    """Neither is it removed, nor does it stand in the way."""
    mine = [run / folder / name for folder, names in STRANGE.items() for name in names]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    for link in ("0000000044", ".0000000044.unfinished"):
        (run / "checkpoints" / link).symlink_to(treasure)
    before = contents(treasure)
    code, _, err = command("resume", run, *argv)
    if code:  # a folder in the place where a file is to be written
        assert code == 2 and says(err, ".config.yaml.unfinished: is in the way")
        shutil.rmtree(run / ".config.yaml.unfinished")
        mine = [path for path in mine if ".config" not in str(path)]
        assert command("resume", run, *argv)[0] == 0
    assert [path.read_text() for path in mine] == ["mine"] * len(mine)
    assert contents(treasure) == before and (run / "checkpoints" / "0000000044").is_symlink()
    assert Checkpoints(run / "checkpoints").names()[-1] == "0000000075"


@pytest.mark.parametrize("name, argv", [(".lock", ()), (".summary.json.unfinished", ()), ("trace.json", ("--trace",))])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_of_ours_that_is_another_is_neither_followed_nor_emptied(run, tmp_path, command, name, argv, kind):
    diary = tmp_path / "diary"
    diary.write_text("mine")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(diary) if kind == "link" else os.mkfifo(run / name)
    code, _, err = command("resume", run, *MORE, *argv)
    assert code == 2 and says(err, name) and diary.read_text() == "mine" and os.path.lexists(run / name)


def test_metrics_that_are_a_link_become_a_file(run, tmp_path):
    shutil.move(run / "metrics.jsonl", tmp_path / "metrics")
    (run / "metrics.jsonl").symlink_to(tmp_path / "metrics")
    before = (tmp_path / "metrics").read_text()
    resume(run, ["training.epochs=3"])
    assert (tmp_path / "metrics").read_text() == before and not (run / "metrics.jsonl").is_symlink()


def test_page_files_are_known_by_their_names(graph, tmp_path):
    """A process that was killed before it could list them leaves some; a word processor writes others."""
    config, run = graph_config(graph, budget(40)), tmp_path / "run"
    with pytest.raises(OSError, match="stopped here"):
        train(config, run, probe=stop_at("plan", 0, OSError("stopped here")))
    tables, name = run / "tables", "1-0123456789abcdef0123456789abcdef.pages"
    (left,) = tables.glob("*.pages")
    for each in ("letter.pages", "1-letter.pages", name.upper()):
        (tables / each).write_text("mine")
    (tables / "pages.json").unlink()
    (tables / name).symlink_to(tables / "letter.pages")
    resume(run)
    assert not left.exists() and (tables / name).is_symlink()
    assert [(tables / each).read_text() for each in ("letter.pages", "1-letter.pages", name.upper())] == ["mine"] * 3
    shutil.rmtree(run / "checkpoints")
    (left,) = (path for path in tables.glob("0-*.pages"))
    (tables / "pages.json").unlink()
    for again in ({}, {"checkpoint": START}):
        with suppress(InputError):
            resume(run, ["training.epochs=2"], **again)
        assert left.exists(), "whoever finds the checkpoints again needs it"


def test_a_mapped_table_is_no_link(graph, tmp_path):
    diary = tmp_path / "diary"
    diary.write_text("mine")
    config = tiny_config(graph, "storage.io=mmap", "training.epochs=1", "evaluation.every=0")
    train(config, tmp_path / "run")
    (tmp_path / "run" / "tables" / "entities.rows").symlink_to(diary)
    with pytest.raises(InputError, match="entities.rows: is in the way"):
        resume(tmp_path / "run", ["training.epochs=2"])
    assert diary.read_text() == "mine"


NUMBERS = DerivedArray("numbers.npy", (np.int64,), (3,))


def numbers(folder):
    np.save(folder / "numbers.npy", np.arange(3))


def test_what_follows_from_a_graph_replaces_only_its_own(tmp_path, treasure):
    def make(folder):
        raise AssertionError("this folder is not to be replaced")

    with pytest.raises(InputError, match="treasure: is in the way"):
        open_derived(treasure, "about.json", {}, [NUMBERS], numbers, "")
    (tmp_path / "link").symlink_to(treasure)
    with pytest.raises(InputError, match="link: is a symbolic link"):
        open_derived(tmp_path / "link", "about.json", {}, [NUMBERS], make, "")
    assert contents(treasure) and sorted(path.name for path in tmp_path.iterdir()) == ["link", "treasure"]
    made = tmp_path / "made"
    made.mkdir()
    for name in ("about.json", ".numbers.npy.unfinished"):
        (made / name).write_text("{")
    remove_folder(made, ("about.json", "numbers.npy"))
    assert not made.exists()


def test_cleaning_tells_files_from_folders(tmp_path):
    for name in (".a.unfinished", ".c.unfinished"):
        (tmp_path / name).write_text("")
    for name in (".b.unfinished", ".d.unfinished"):
        (tmp_path / name / "in").mkdir(parents=True)
    clean(tmp_path, files="b|c", folders="a|d")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.unfinished", ".b.unfinished"]


def test_a_hard_link_under_a_temporary_name_is_not_written_through(tmp_path):
    (tmp_path / "diary").write_text("mine")
    os.link(tmp_path / "diary", tmp_path / ".summary.json.unfinished")
    write_atomically(tmp_path / "summary.json", "{}")
    assert (tmp_path / "diary").read_text() == "mine" and (tmp_path / "summary.json").read_text() == "{}"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_nothing_new_is_written_through_a_link_that_waits_for_it(run, graph, treasure, tmp_path, command, kind):
    """A folder that somebody has given away may hold links under the names of what is written there."""
    target = treasure if kind == "folder" else treasure / "notes.txt"
    config = write_config(tmp_path / "c.yaml", tiny_config(graph))
    table = tmp_path / "table.parquet"
    day = lambda path: write_day(path, 0, 10, LogSpec(categorical=1, numeric=1, keys=5))  # noqa: E731
    for out, make in (
        (run / "b", lambda out: command("train", config, "--out", out)),
        (run / "exported", lambda out: command("export", run, "--out", out)),
        (table, lambda out: day(out)),
    ):
        link = out.with_name(f".{out.name}.unfinished")
        link.symlink_to(target)
        before = contents(treasure)
        try:
            code, _, err = make(out)
            assert code == 2 and says(err, f"{link}: is a symbolic link")
        except InputError as error:
            assert f"{link}: is a symbolic link" in str(error)
        assert contents(treasure) == before and link.is_symlink() and not out.exists()


def test_neither_are_predictions(tmp_path, treasure, command):
    log = small_log(tmp_path / "log.parquet", rows=64)
    run = train(ctr_config(log, "training.epochs=1", network="lr"), tmp_path / "clicks").path
    link = run / ".scores.parquet.unfinished"
    link.symlink_to(treasure / "notes.txt")
    code, _, err = command("predict", run, "--data", log, "--out", run / "scores.parquet")
    assert code == 2 and says(err, f"{link}: is a symbolic link") and (treasure / "notes.txt").read_text() == "mine"
