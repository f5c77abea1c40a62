"""What shells complete: bash does so here."""

import subprocess
import sys

import pytest

from marius_oac.errors import how_to_install

PRESS_TAB = """
source "$1"; shift
compopt() { :; }  # bash has it within a completion alone
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_marius_oac marius-oac
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    words = [sys.executable, "-m", "marius_oac", "completion", "bash"]
    path = tmp_path_factory.mktemp("shell") / "completion.bash"
    path.write_text(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return path


@pytest.mark.parametrize(("words", "completed"), [
    ("comple", "completion"), ("train gra", "graph.yaml"), ("train graph.yaml --loc", "--local-nodes"),
    ("train graph.yaml --out gra", "graph.yaml"), ("eval run --data gra", "graph.yaml"), ("init gra", "graph.yaml"),
    ("train graph.yaml --on r", "ray"), ("predict run --head gra", ""),
])  # fmt: skip
def test_bash_completes_commands_options_choices_and_files(script, tmp_path, words, completed):
    (tmp_path / "graph.yaml").write_text("")
    pressed = ["bash", "-c", PRESS_TAB, "bash", script, "marius-oac", *words.split()]
    done = subprocess.run(pressed, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (completed, "")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_scripts_of_other_shells_have_the_commands(command, shell):
    code, out, _ = command("completion", shell)
    assert code == 0 and "local-nodes" in "\n".join(out)


def test_without_shtab_it_is_said_how_to_install_it(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    says = f"marius-oac: completion: needs shtab: {how_to_install('completion')}"
    assert command("completion", "bash") == (2, [], [says])
