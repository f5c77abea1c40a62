"""A run whose rows lie in folders of their own, and its copies: one writes to the page files, none destroys another.

What is refused is refused by name, before anything is written."""

import json
import os
import shutil

import pytest

from marius_oac import open_run, resume, train
from marius_oac.errors import InputError
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.storage.disk import owner as page_owner
from tests.disk import bits, budget, graph_config, page_files
from tests.run_folders import contents, says, stop_at

MORE = ["training.epochs=2"]


class Crash(Exception):
    pass


@pytest.fixture
def pages(tmp_path):
    """The folders of the page files."""
    return [tmp_path / "nvme0", tmp_path / "nvme1"]


SMALL = ("training.batch_size=32", "checkpoint.every_batches=10", "checkpoint.keep=1")


@pytest.fixture
def config(graph, pages):
    return graph_config(graph, budget(80), *SMALL, f"storage.path={json.dumps([str(each) for each in pages])}")


@pytest.fixture
def run(config, tmp_path):
    return train(config, tmp_path / "runs" / "a").path


@pytest.fixture(scope="module")
def expected(graph, tmp_path_factory):
    """Of a run of two epochs that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    return bits(train(graph_config(graph, budget(80), *SMALL, *MORE), folder / "run").summary)


def refused(command, run, *parts):
    """A resume ends with one line that holds the parts, and has changed nothing."""
    before = contents(run.parents[1])
    code, _, err = command("resume", run, "--set", *MORE)
    assert code == 2 and says(err, *map(str, parts)) and contents(run.parents[1]) == before


def copied(run, name="b"):
    return shutil.copytree(run, run.with_name(name), symlinks=True)


def test_a_copy_is_refused_and_the_original_goes_on(run, command, expected):
    """Whether the original has gone on since or not."""
    early = copied(run)
    refused(command, early, "nvme0", f"belongs to the run at {run}, of which {early} is a copy")
    assert bits(resume(run, MORE).summary) == expected
    refused(command, early, f"was written to since by the run that is, or was, at {run}: {early} is an older copy")
    late = copied(run, "c")
    code, _, err = command("resume", late, "--set", "training.epochs=3")
    assert code == 2 and says(err, f"{late} is a copy")
    for reading in (("eval", late), ("compare", run, late)):
        assert command(*reading)[0] == 0
    assert bits(open_run(run).summary) == expected and command("eval", run)[0] == 0


def test_a_copy_beside_a_run_that_is_being_trained_is_refused(config, command, tmp_path):
    run, said = tmp_path / "runs" / "a", []

    def probe(stage, batch_index):
        if (stage, batch_index) == ("compute", 15):
            said.append(command("resume", copied(run), "--set", *MORE))

    train(config, run, probe=probe)
    ((code, _, err),) = said
    assert code == 2 and says(err, "nvme0", "is in use: another process trains with it")


@pytest.mark.parametrize("how", ["renamed", "to another file system"])
def test_a_run_that_was_moved_goes_on(run, tmp_path, expected, capsys, how):
    copy, new = copied(run, "left"), tmp_path / "elsewhere" / "deep" / "a"
    new.parent.mkdir(parents=True)
    if how == "renamed":
        run.rename(new)
    else:
        shutil.copytree(run, new)
        shutil.rmtree(run)
    assert bits(resume(new, MORE).summary) == expected
    assert (f"belongs to {new} from now on: {run}" in capsys.readouterr().err) == (how != "renamed")
    with pytest.raises(InputError, match=rf"was written to since by the run that is, or was, at {new}"):
        resume(copy, MORE)
    assert resume(new, ["training.epochs=3"]).summary["training.epochs"] == 3


def test_of_two_copies_without_an_original_the_first_goes_on(run, command, expected, tmp_path):
    first, second = copied(run, "first"), copied(run, "second")
    shutil.rmtree(run)
    assert bits(resume(first, MORE).summary) == expected
    refused(command, second, f"at {first}")
    first.rename(tmp_path / "elsewhere")  # where nobody finds it
    refused(command, second, f"at {first}")
    assert command("eval", tmp_path / "elsewhere")[0] == 0


def test_a_copy_in_the_place_of_a_run_that_was_renamed_is_refused(run, command, expected):
    kept = run.rename(run.with_name("kept"))
    shutil.copytree(kept, run)
    refused(command, run, f"belongs to the run at {kept}, of which {run} is a copy")
    assert bits(resume(kept, MORE).summary) == expected


def test_a_part_of_a_run_over_nodes_is_found_where_the_run_was_renamed(tmp_path):
    """It lies some folders below it."""
    part = tmp_path / "run" / "nodes" / "2-ab" / "a"
    part.mkdir(parents=True)
    owner = page_owner._Owner(folder=str(part), inode=page_owner._inode(part), token="")
    (tmp_path / "run").rename(tmp_path / "kept")
    part.mkdir(parents=True)
    assert tmp_path / "kept" / "nodes" / "2-ab" / "a" in list(page_owner._others(owner, part))


def test_a_backup_that_is_put_back_goes_on_if_its_page_files_are_of_its_time(run, command, expected, tmp_path, pages):
    backup = shutil.copytree(run, tmp_path / "backup" / "a")
    old_pages = [shutil.copytree(folder, tmp_path / "backup" / folder.name) for folder in pages]
    resume(run, MORE)
    shutil.rmtree(run)
    shutil.copytree(backup, run)
    refused(command, run, "or was brought back without its page files")
    for folder, old in zip(pages, old_pages, strict=True):
        shutil.rmtree(folder)
        shutil.copytree(old, folder)
    assert bits(resume(run, MORE).summary) == expected
    shutil.rmtree(run)
    shutil.copytree(backup, run)
    (owner,) = pages[0].glob("*.owner")
    owner.unlink()  # as the message says: by hand, whatever is in the files now
    assert command("resume", run, "--set", "training.epochs=3")[0] in (0, 2)


@pytest.mark.parametrize("kind", ["hard links", "symbolic links"])
def test_a_copy_of_links_is_refused(graph, command, tmp_path, kind):
    run = train(graph_config(graph, budget(80), "training.batch_size=32"), tmp_path / "runs" / "a").path
    link = os.link if kind == "hard links" else os.symlink
    copy = shutil.copytree(run, run.with_name("b"), copy_function=lambda old, new: link(old, new))
    if kind == "symbolic links":
        (copy / ".lock").unlink()
        (copy / ".lock").touch()
    refused(command, copy, "0-", "has 2 hard links" if kind == "hard links" else "is a symbolic link")
    if kind == "hard links":
        refused(command, run, "has 2 hard links")
        (file,) = page_files(copy)
        shutil.copy(file, copy / "copy")  # as the message says
        (copy / "copy").rename(file)
        resume(copy, MORE)
        assert command("eval", run)[0] == 0
    assert bits(resume(run, MORE).summary)


def test_a_copy_with_page_files_of_its_own_is_another_run(graph, tmp_path):
    """As it has where they lie in the run's folder."""
    config = graph_config(graph, budget(80), "training.batch_size=32", "checkpoint.keep=1")
    run = train(config, tmp_path / "a").path
    copy, before = shutil.copytree(run, tmp_path / "b"), contents(run)
    second = bits(resume(copy, MORE).summary)
    assert contents(run) == before and bits(resume(run, MORE).summary) == second
    assert [Checkpoints(path / "checkpoints").names() for path in (run, copy)] == [["0000000050"]] * 2


def test_a_copy_is_given_page_files_of_its_own_by_hand(run, command, expected):
    """As the message says."""
    copy = copied(run)
    listing = copy / "tables" / "pages.json"
    for file in page_owner.Listing.load(listing).files:
        shutil.copy(file, copy / "tables")
    folders = {str(run.parents[1] / name) + "/" for name in ("nvme0", "nvme1")}
    text = listing.read_text()
    for folder in folders:
        text = text.replace(folder, "")
    listing.write_text(text)
    before = contents(run), contents(run.parents[1] / "nvme0")
    assert bits(resume(copy, MORE).summary) == expected
    assert (contents(run), contents(run.parents[1] / "nvme0")) == before


def test_without_a_record_of_the_owner_it_is_said_that_nothing_is_known(run, pages, expected, capsys):
    (owner,) = pages[0].glob("*.owner")
    owner.unlink()
    (run / "tables" / page_owner.OWNER).unlink()
    assert bits(resume(run, MORE).summary) == expected
    assert "nothing says that it is this run's alone" in capsys.readouterr().err and owner.exists()


@pytest.mark.parametrize("number", range(3))
def test_a_crash_while_files_are_claimed_is_no_loss_of_them(run, monkeypatch, expected, number):
    real, calls = page_owner.write_atomically, []

    def write(path, content):
        calls.append(path.name)
        if len(calls) > number:
            raise Crash
        real(path, content)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(page_owner, "write_atomically", write)
        resume(run, MORE)
    assert len(calls) == number + 1
    with pytest.raises(Crash):  # and once more
        resume(run, MORE, probe=stop_at("compute", 30, Crash()))
    assert bits(resume(run, MORE).summary) == expected


def test_damage_is_named(run, command, pages):
    (owner,) = pages[0].glob("*.owner")
    owner.write_text("{}")
    code, _, err = command("resume", run, "--set", *MORE)
    assert code == 2 and says(err, f"{owner}: is damaged")


def test_a_run_that_has_lost_what_says_whose_its_page_files_are_is_refused_by_that_name(run, command):
    (run / "tables" / "owner.json").unlink()
    refused(command, run, "tables/owner.json: is missing")
