"""A message names the program once, by the name that it was called by."""

import sys

import pytest

from benchmarks.generate import log, nodes
from marius_oac.cli.commands import _parser

COMMANDS = _parser()._subparsers._group_actions[0].choices
OTHER_WORDS = {
    "prepare": "FILE --out o", "nodes": "check FILE", "tune": "FILE --space FILE",
    "compare": "FILE FILE", "kuberay": "FILE --out o --image i --claim c --trainers 2",
}  # fmt: skip
"""For a command that takes more than a file."""


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("file", ["--nonsense", "no/such/file", "bad.yaml"])
def test_of_a_command(command, tmp_path, monkeypatch, name, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("data: [\n")
    code, out, err = command(name, *OTHER_WORDS.get(name, "FILE").replace("FILE", file).split())
    assert (code, out) == (2, []) and [line.count("marius") for line in err] == [1]
    assert err[0].startswith("marius-oac: ")


@pytest.mark.parametrize("module", [log, nodes])
@pytest.mark.parametrize("words", [[], ["--nonsense"], ["--out", "bad.yaml"]])
def test_of_a_module_that_is_run(tmp_path, monkeypatch, capsys, module, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("")
    assert module.main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m {module.__name__}: ") and line.count(module.__name__) == 1


@pytest.mark.parametrize(("package", "words"), [
    ("jinja2", ["report", "RUN"]), ("matplotlib", ["report", "RUN"]), ("rich.console", ["watch", "RUN"]),
    ("optuna", ["tune", "CONFIG", "--space", "SPACE"]),
])  # fmt: skip
def test_of_a_package_that_is_not_installed(command, finished, tmp_path, monkeypatch, package, words):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "space.yaml").write_text("space:\n  seed: {low: 1, high: 3}\n")
    paths = {"RUN": finished, "CONFIG": finished / "config.yaml", "SPACE": tmp_path / "space.yaml"}
    code, out, err = command(*(paths.get(word, word) for word in words))
    assert (code, out, len(err)) == (2, [], 1) and err[0].startswith(f"marius-oac: {words[0]}")
    assert " needs " in err[0] and "marius-oac" not in err[0].removeprefix("marius-oac: ")
