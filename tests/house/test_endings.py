"""What `benchmarks.endings.processes` measures with: who is left, how it ended, what is unfinished, its judgement."""

import signal

import pytest

from benchmarks.endings.processes import EVENTS, Command, Row, Started, expected_codes, unfinished_in, wait_until


def test_what_a_process_leaves_behind_is_found_wherever_it_went_and_ended(tmp_path):
    """One that has a session of its own, with other streams, whose parent is gone."""
    # While a process is replaced by the next program, it has no environment by which it could be found.
    begun = "until grep -q sleep /proc/$!/comm; do :; done"
    script = f'setsid sleep 600 </dev/null >/dev/null 2>&1 & {begun}; echo "$!" > "$0"; exit 3'
    with Started(["bash", "-c", script, str(tmp_path / "child")], tmp_path / "said.txt") as started:
        assert wait_until((tmp_path / "child").exists, started.process, 60)
        assert started.process.wait(60) == 3
        (left,) = started.left()
        assert left.is_running()
    assert not started.left()


@pytest.mark.parametrize(
    ("redirection", "code"), [("", 7), ("2>&1 | head -1", 7), (">&- 2>&-", 7), (">/dev/full 2>&1", 7)]
)
def test_the_exit_code_is_the_commands_own(tmp_path, redirection, code):
    with Started(["bash", "-c", "echo said; exit 7"], tmp_path / "said.txt", redirection) as started:
        assert started.end()[0] == code
    assert (tmp_path / "said.txt").read_text() == ("said\n" if not redirection or "head" in redirection else "")


def test_signals_are_sent_one_after_the_other(tmp_path):
    script = "trap 'n=$((n+1)); [ $n = 2 ] && exit 5' INT; : > \"$0\"; while :; do sleep 0.05; done"
    with Started(["bash", "-c", script, str(tmp_path / "ready")], tmp_path / "said.txt") as started:
        assert wait_until((tmp_path / "ready").exists, started.process, 60)
        code, seconds = started.end(EVENTS["SIGINT twice"])
    assert code == 5 and seconds >= 0.7


def test_what_is_unfinished_is_named(tmp_path):
    (tmp_path / "a" / ".0000000005.unfinished").mkdir(parents=True)
    (tmp_path / "a" / "x.part").write_text("")
    (tmp_path / "a" / "whole").write_text("")
    assert unfinished_in(tmp_path) == [".0000000005.unfinished", "x.part"]


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        ('trap "exit 130" INT; while :; do sleep 0.05; done', ""),
        ('trap "exit 1" INT; echo oops; while :; do sleep 0.05; done', "exit code 1: oops"),
        ('trap "touch $2/made; exit 130" INT; while :; do sleep 0.05; done', "something is left"),
        ('trap "touch $2/.made.unfinished; exit 130" INT; while :; do sleep 0.05; done', "something is left"),
    ],
)
def test_an_ending_that_does_not_hold_is_told(tmp_path, script, wrong):
    command = Command(
        "it", ["bash", "-c", f'set -- "$1" "${{2%/*}}"; {script}', "bash"], tmp_path / "it", "made", False
    )
    row = command.row("start-up", "SIGINT")
    assert isinstance(row, Row) and row.wrong == wrong and str(row).count("|") == 11
    assert row.left == 0


def test_codes_are_those_of_the_design():
    assert expected_codes("SIGTERM", "saving") == (143,) and expected_codes("SIGKILL", "saving") == (-signal.SIGKILL,)
    assert expected_codes("SIGINT twice", "saving") == (130, -signal.SIGINT) == expected_codes("SIGINT", "start-up")
