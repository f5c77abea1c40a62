"""Names of keys and commands of the version before: they work once more, and the new name is told."""

import shutil
import subprocess
import sys

import pytest

from marius_oac.config import renamed
from marius_oac.config.cluster import ClusterConfig
from marius_oac.config.link_prediction import Config
from marius_oac.errors import ConfigError
from marius_oac.runs.folder.folder import RunFolder

OLD = """data: {path: codex-s}
nodes:
  modes: {window: 3}
  dense: {kind: ma, gap: 7}
"""
TOLD = "; the next version knows that name alone\n"


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(renamed, "_told", set())


def test_a_file_with_old_keys_has_their_values_and_each_is_told_once_with_its_line(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(OLD)
    for _ in range(2):
        config = Config.load(tmp_path / "c.yaml")
        assert config.nodes.mode_options.window == 3 and config.nodes.dense.sync_every == 7
    where = f"note: {tmp_path}/c.yaml"
    assert capsys.readouterr().err == (
        f"{where}:3: nodes.modes: 'nodes.modes' is now called 'nodes.mode_options'{TOLD}"
        f"{where}:4: nodes.dense.gap: 'nodes.dense.gap' is now called 'nodes.dense.sync_every'{TOLD}"
    )
    Config.build(config.model_dump(mode="json"))
    assert capsys.readouterr().err == ""


def test_settings_by_old_keys(capsys):
    config = Config.build({"data": {"path": "codex-s"}}, ["nodes.modes.window=2", "nodes.modes={ahead: 1}"])
    assert config.nodes.mode_options.ahead == 1
    assert capsys.readouterr().err.startswith("note: --set nodes.modes: 'nodes.modes' is now called ")
    with pytest.raises(ConfigError, match="^--set nodes.mode_options.window: must be greater than 0"):
        Config.build({"data": {"path": "codex-s"}}, ["nodes.modes.window=0"])


def test_a_mistake_below_an_old_key_has_its_line(tmp_path):
    (tmp_path / "c.yaml").write_text(OLD.replace("window: 3", "window: x"))
    with pytest.raises(ConfigError, match=r"c.yaml:3: nodes.mode_options.window: "):
        Config.load(tmp_path / "c.yaml")


def test_both_names_are_one_too_many(tmp_path):
    (tmp_path / "c.yaml").write_text(OLD + "  mode_options: {}\n")
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path / "c.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/c.yaml:3: nodes.modes: 'modes' is the old name of 'mode_options', and both are given; "
        "leave the old one out"
    )


def test_nodes_yaml(tmp_path, capsys):
    (tmp_path / "n.yaml").write_text("guests: 2\nnodes: [{address: 10.0.0.1}]\n")
    assert ClusterConfig.load(tmp_path / "n.yaml").elastic_workers == 2
    assert capsys.readouterr().err == f"note: {tmp_path}/n.yaml:1: 'guests' is now called 'elastic_workers'{TOLD}"


def test_a_run_of_the_version_before_opens_and_nothing_is_told(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    text = (run / "config.yaml").read_text()
    assert "mode_options:" in text and "sync_every:" in text
    (run / "config.yaml").write_text(text.replace("mode_options:", "modes:").replace("sync_every:", "gap:"))
    assert RunFolder.open(run).config == RunFolder.open(finished).config
    assert capsys.readouterr().err == ""


def test_a_command(command):
    code, out, err = command("join", "nothing.yaml")
    assert code == 2 and out == []
    assert err == [
        f"note: 'join' is now called 'attach'{TOLD}"[:-1],
        "marius-oac: nothing.yaml: no such file or directory",
    ]


@pytest.mark.parametrize("old, new", [("generate_nodes", "generate.nodes"), ("log_generate", "generate.log")])
def test_modules_that_are_run_by_their_old_names(old, new):
    words = [sys.executable, "-m", f"marius_oac.data.{old}", "--out"]
    done = subprocess.run(words, capture_output=True, text=True)
    first, *rest = done.stderr.splitlines()
    assert done.returncode == 2 and f"{first}\n" == (
        f"note: 'marius_oac.data.{old}' is now called 'marius_oac.data.{new}'{TOLD}"
    )
    assert "--out" in rest[-1]
