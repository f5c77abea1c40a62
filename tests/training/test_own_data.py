"""From a stranger's raw file to a result that is worth something, with no edit of the config that `init` writes."""

import json
import shlex

import pytest

from tests.training.own_data import OWN


@pytest.mark.parametrize(
    "name",
    ["links", "facts", *(pytest.param(each, marks=pytest.mark.slow) for each in ("census", "ratings", "advertising"))],
)
def test_from_a_raw_file_to_a_result(name, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    own = OWN[name]
    own.make(tmp_path / own.file, own.rows)
    split = ["--split", "parts"] if own.metric == "test.auc" else []
    code, _, err = command("init", own.file, *split, "--out", "config.yaml")
    assert code == 0, err
    for line in (tmp_path / "config.yaml").read_text().splitlines():
        if line.startswith("#   marius-oac prepare"):
            assert command(*shlex.split(line.removeprefix("#   marius-oac ")))[0] == 0
    code, out, err = command("train", "config.yaml", "--out", "run")
    assert code == 0, err
    found = json.loads((tmp_path / "run" / "summary.json").read_text())[own.metric]
    assert found > own.more_than, own.simple
