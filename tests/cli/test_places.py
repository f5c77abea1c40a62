"""Where a command writes: to a local folder whose path is UTF-8, or nowhere, with one line before anything begins."""

import os

import pytest

from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import check_place
from marius_oac.training.local import train
from tests.graphs import tiny_config, tiny_graph
from tests.run_folders import says

TRAIN = ("--set", "training.epochs=1", "--set", "device=cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run, its configuration, edges and a space to search."""
    folder = tmp_path_factory.mktemp("made")
    config = tiny_config(tiny_graph(folder / "data"), "training.epochs=1")
    train(config, folder / "run")
    (folder / "mine.yaml").write_text(config.dump())
    (folder / "edges.tsv").write_text("".join(f"n{i % 17}\tr{i % 3}\tn{i * 7 % 23}\n" for i in range(300)))
    (folder / "space.yaml").write_text("space: {training.optimizer.learning_rate: {low: 0.01, high: 1.0}}\n")
    return folder


COMMANDS = [
    ("prepare", "edges.tsv"), ("init", "edges.tsv"), ("train", "mine.yaml", *TRAIN), ("export", "run"),
    ("report", "run"), ("tune", "mine.yaml", "--space", "space.yaml", "--trials", "1"),
]  # fmt: skip


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
@pytest.mark.parametrize("place", ["s3://bucket/x", "gs://b/a/x.yaml", "file:///tmp/x", b"odd\xff/x"], ids=str)
def test_what_is_no_local_place_is_refused(command, made, monkeypatch, argv, place):
    monkeypatch.chdir(made)
    before = sorted(os.walk(made))
    code, out, err = command(*argv, "--out", os.fsdecode(place))
    assert (code, out) == (2, []) and sorted(os.walk(made)) == before
    why = "its path is not UTF-8" if isinstance(place, bytes) else "is an address"
    assert says(err, why) and len([line for line in err if not line.startswith("note: ")]) == 1, err


def test_a_run_in_a_folder_that_could_not_be_recorded(command, made, tmp_path, monkeypatch):
    """The present folder is recorded, too, wherever the run is."""
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(odd)
    monkeypatch.chdir(odd)
    for out in ("run", str(tmp_path / "run")):
        code, _, err = command("train", made / "mine.yaml", "--out", out, *TRAIN)
        assert code == 2 and says(err, "is not UTF-8"), err
    assert os.listdir(odd) == [] and sorted(os.listdir(tmp_path)) == [os.listdir(tmp_path)[0]]


def test_names_that_are_no_addresses(tmp_path):
    for name in ("s3", "a:b", "c:/x", "runs/s3:/x", "10:30/run", "./x:y/z", "é"):
        check_place(tmp_path / name)
    for name in ("c:/x", "a:b/x", "runs/s3:/x"):
        check_place(name)
    for name in ("s3:/x", "https://x", "sftp+ssh://a/b"):
        with pytest.raises(InputError, match="is an address"):
            check_place(name)
