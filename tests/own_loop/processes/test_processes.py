"""Loops in two processes: the results of one, lines for what goes wrong, and nothing that hangs."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

import marius_oac.torch as mt
from marius_oac.errors import CheckpointError
from marius_oac.torch.layouts import part_at
from marius_oac.torch.shared_checkpoints import _newest_whole, _of_others
from marius_oac.torch.sharing import Share
from tests.own_loop.processes import ranks
from tests.own_loop.processes.ranks import Training, batches, concatenated
from tests.own_loop.processes.spawned import ended, results, spawn

pytestmark = pytest.mark.usefixtures("forked_programs")


def near(one, other):
    return all(torch.allclose(*pair, rtol=0, atol=1e-6) for pair in zip(one, other, strict=True))


def equal(one, other):
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def unpadded(accumulate=1, fewer=5):
    """What one process has after 7 batches, of which only the first `fewer` have the second half, too."""
    alone = Training(optimizer=mt.Adam, lr=0.02)
    parts = [torch.cat(both) for both in batches(2, fewer)] + [both[0] for both in batches(2, 7)[fewer:]]
    with alone.engine as engine:
        for number, batch in enumerate(engine.batches(alone.fed(parts), accumulate)):
            (alone.loss(batch) * (1 if number < fewer else 0.5) / accumulate).backward()
            if number % accumulate == accumulate - 1 or number == 6:
                alone.stepped()
    return alone.result()


def test_two_processes_have_the_results_of_one_and_tell_what_differs(tmp_path):
    found = results(tmp_path, "adagrad", "resumed", "uneven", "padded", "told_late", "rates", "half_stepped", "raised")
    wanted = concatenated(2)
    for rank in range(2):
        assert near(found["adagrad"][rank], wanted) and equal(found["adagrad"][rank], found["adagrad"][0])
        loaded, result, folders, rows = found["resumed"][rank]
        assert loaded == [False, True, True] and equal(result, found["adagrad"][0])
        assert folders == ["process-0-of-2", "process-1-of-2"] and 0 < rows < ranks.KEYS
        lines, trained, _ = found["uneven"][rank]
        assert trained == 7 and lines == [
            "InputError: Engine.batches: rank 1 has 5 batches in this pass, and rank 0 more: give all as many, "
            'or say uneven="pad"'
        ]
        for lines in (*found["rates"][rank], *found["told_late"][rank]):
            assert len(lines) == 1 and lines[0].endswith("the learning rate is 0.1 on rank 0 and 0.2 on rank 1"), lines
        (lines,) = found["half_stepped"][rank]
        assert len(lines) == 1 and "batch 3, table '0': rank 0 has updated rows and rank 1 has not" in lines[0]
        assert [weights for weights, *_ in found["padded"][rank]] == [[1.0] * (7 - 2 * rank) + [0.0] * (2 * rank)] * 2
        assert all(near(result, unpadded()) for _, *result in found["padded"][rank])
    assert found["raised"] == [[["NodeLost: node rank 1: it can't go on: Engine: ZeroDivisionError"]], [[]]]
    # Batches before the uneven ones are trained, and the loop after them.
    alone = Training()
    with alone.engine as engine:
        for part in [*batches(2, 5), *batches(2, 2)]:
            for batch in engine.batches(alone.fed([torch.cat(part)])):
                alone.train(batch)
    assert torch.allclose(found["uneven"][0][2], alone.table(), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_rows_are_the_same_for_all_optimizers_modes_and_places(tmp_path):
    found = results(tmp_path, "adagrad", "sgd", "adam", "texts", "ways", "disk", "alone", "converted")
    given = {"sgd": {"optimizer": mt.SGD}, "adam": {"optimizer": mt.Adam, "lr": 0.02}, "texts": {"texts": True}}
    torch.manual_seed(5)
    first = torch.nn.Embedding(ranks.KEYS, 4).weight
    alone = Training()
    with alone.engine as engine:
        for batch in engine.batches(alone.fed(parts[0] for parts in batches(2))):
            alone.train(batch)
    for rank in range(2):
        for name, arguments in given.items():
            assert near(found[name][rank], concatenated(2, **arguments)), name
        assert all(equal(way, found["adagrad"][rank]) for way in found["ways"][rank])
        assert equal(found["disk"][rank], found["adagrad"][rank])
        assert equal(found["alone"][rank], alone.result())
        assert torch.equal(found["converted"][rank][0], first)
    assert sum(rows for _, rows in found["converted"]) == ranks.KEYS


@pytest.mark.slow
def test_a_dense_part_in_pieces(tmp_path):
    for lines, *result in results(tmp_path, "fsdp")["fsdp"]:
        assert near(result, concatenated(2))
        assert len(lines) == 1 and "is in pieces, a DTensor of torch's" in lines[0], lines


@pytest.mark.slow
def test_loaders_with_workers_that_stay(tmp_path):
    for expected, *others in results(tmp_path, "workers")["workers"]:
        assert len(others) == 2 and all(equal(each, expected) for each in others)


@pytest.mark.slow
def test_a_damaged_part_is_told_in_all_processes(tmp_path):
    for rank, (lines, expected, found) in enumerate(results(tmp_path, "damaged")["damaged"]):
        assert len(lines) == 2 and all("0.values.npy" in line and "damaged" in line for line in lines), lines
        assert all(("rank 1 loads and can't" in line) == (rank == 0) for line in lines), lines
        assert equal(found, expected)


@pytest.mark.slow
def test_three_processes(tmp_path):
    found = results(tmp_path, "adagrad", "ways", size=3)
    wanted = concatenated(3)
    for rank in range(3):
        assert near(found["adagrad"][rank], wanted)
        assert all(equal(way, found["adagrad"][0]) for way in found["ways"][rank])


@pytest.mark.slow
def test_rows_are_read_by_one_process_within_the_loop_and_after_it(tmp_path):
    found = results(tmp_path, "looks")["looks"]
    tables = [concatenated(2, count)[0] for count in range(8)]
    for rank, seen in enumerate(found):
        for place, number in enumerate(range(rank, 7, 2)):
            for each in seen[2 * place : 2 * place + 2]:
                assert torch.allclose(each, tables[number], rtol=0, atol=1e-6), (rank, number)
    assert torch.allclose(found[1][-1], tables[7], rtol=0, atol=1e-6) and [*map(len, found)] == [8, 7]


@pytest.mark.slow
def test_skipped_steps_and_batches_that_are_one_unit(tmp_path):
    found = results(tmp_path, "skipped", "accumulated", "uneven_units")
    alone = Training()
    with alone.engine as engine:
        units = zip(*[iter(batches(2, 5))] * 2, strict=False)
        for unit in [*units, (batches(2, 5)[4],)]:
            for batch in engine.batches(alone.fed([torch.cat([*map(torch.cat, unit)])])):
                loss = alone.loss(batch) * len(unit) / 2
                loss.backward()
                alone.rows.step()
                alone.rows.zero_grad()
    for rank in range(2):
        assert torch.equal(*found["skipped"][rank])
        assert torch.allclose(found["accumulated"][rank][0], alone.table(), rtol=0, atol=1e-6)
        lines, trained = found["uneven_units"][rank]
        assert trained == 6 and "rank 1 has 7 batches in this pass, and rank 0 more" in lines[0]


@pytest.mark.slow
def test_padding_with_any_loader_and_in_units(tmp_path):
    for rank, (lines, *found) in enumerate(results(tmp_path, "padded_ways")["padded_ways"]):
        parts = (("the loader gave none", "rank 0 goes no further")[rank],
                 "uneven must be the same in all processes: it is 'error' on rank 0 and 'pad' on rank 1")  # fmt: skip
        assert len(lines) == len(parts) and all(part in line for part, line in zip(parts, lines, strict=True)), lines
        for (accumulate, fewer), (weights, *result) in zip(((1, 5), (1, 6), (2, 5)), found, strict=True):
            own = (7, fewer)[rank]
            assert weights == [1.0] * own + [0.0] * (7 - own)
            assert near(result, unpadded(accumulate, fewer))


@pytest.mark.slow
def test_what_goes_wrong_in_one_process_is_told_in_all(tmp_path):
    wanted = {
        "failed_loader": ("rank 1 goes no further: its loader has failed", "a bad file"),
        "wrong_keys": ("batch 5, table '0': keys must be integers", "rank 0 goes no further"),
        "twice": ("a second step in one batch", "a second step in one batch"),
        "infinite": ("rows of table '0' are NaN, infinite or too large",) * 2,
        "apart": (
            "rank 1: it can't go on: node of another rank: is gone",
            "has not come within 20 s to where rank 1 saves",
        ),
    }
    found = results(tmp_path, *wanted)
    for name, lines in wanted.items():
        for rank, line in enumerate(lines):
            said = found[name][rank][0]
            times = (line is not None) * (2 if name == "failed_loader" else 1)
            assert len(said) == times and all(line in each for each in said), (name, rank, said)
    assert [trained for _, trained in (*found["failed_loader"], *found["wrong_keys"])] == [10, 10, 5, 5]


@pytest.mark.slow
def test_wrong_uses(tmp_path):
    found = results(tmp_path, "other_tables", "other_folders")
    for rank in range(2):
        (lines,) = found["other_tables"][rank]
        parts = (
            "std of table '0' must be the same in all processes: it is 1 on rank 0 and 2 on rank 1",
            "optimizer of table '0' must be the same in all processes: it is 'sgd' on rank 0 and 'adagrad' on",
            "in_flight must be the same in all processes: it is 2 on rank 0 and 3 on rank 1",
            "it is one of 2 processes: share the rows among them by group=torch.distributed.group.WORLD",
            "a group of torch.distributed that this process is in, such as torch.distributed.group.WORLD, not 'all'",
        )
        assert len(lines) == len(parts) and all(part in line for part, line in zip(parts, lines, strict=True)), lines
        (lines,) = found["other_folders"][rank]
        damaged = "manifest.json: is damaged"
        parts = ("rank 1 of 3 has no part of any checkpoint: bring the folder's parts back", damaged, damaged, damaged,
                 "rank 1 of 2 has no part of any checkpoint", "Not a directory",
                 "rows are in several processes, and the engine is closed")  # fmt: skip
        assert len(lines) == len(parts) and all(part in line for part, line in zip(parts, lines, strict=True)), lines


def test_other_numbers_of_processes_go_on_with_rows_and_their_state(tmp_path):
    found = results(tmp_path, "resharded", size=3)["resharded"]
    alone, wanted, rows = Training(optimizer=mt.Adam, lr=0.02), [], []
    with alone.engine as engine:
        for seed, size in enumerate(ranks.RESHARDED):
            for batch in engine.batches(alone.fed(map(torch.cat, batches(size, 4, seed)))):
                alone.train(batch)
            wanted.append(alone.result())
            rows.append(len(alone.items.table))
    for place, size in enumerate(ranks.RESHARDED):
        every = [found[rank][sum(rank < other for other in ranks.RESHARDED[:place])] for rank in range(size)]
        for loaded, table, weight, *after, _, _ in every:
            assert loaded == (place > 0) and near(after, wanted[place])
            assert not loaded or near([table, weight], wanted[place - 1])
        assert sum(count for *_, count, _ in every) == rows[place]
        parts, newest = (
            [f"process-{rank}-of-{size}" for rank in range(size)],
            [f"{4 * place + end:010d}" for end in (2, 4)],
        )
        assert every[0][-1] == (newest if size == 1 else parts), "none of another number is left"


@pytest.mark.slow
@pytest.mark.parametrize(("when", "left"), [("before", 8), ("after", 4), ("removing", 4)])
def test_a_process_killed_while_all_save_leaves_a_checkpoint_that_is_whole(tmp_path, when, left):
    (code, text), (killed, _) = ended(spawn(tmp_path, f"killed_{when}"))
    assert killed == -signal.SIGKILL and code == 1, text
    (tmp_path / "rendezvous").unlink()
    wanted = concatenated(2)
    for trained, *result in results(tmp_path, "after_the_kill")["after_the_kill"]:
        assert trained == left and near(result, wanted)


OF_TWO = "of 2 has no part of any checkpoint"


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ({}, None),
        ({2: {0: ["4"], 1: ["4", "8"]}}, ("4", 2)),
        ({2: {0: ["4"], 1: []}}, None),
        ({2: {0: [], 1: []}}, None),
        ({2: {0: ["4"]}}, f"rank 1 {OF_TWO}"),
        ({2: {1: ["4"]}}, f"rank 0 {OF_TWO}"),
        ({2: {0: ["4", "6"], 1: ["8"]}}, "no checkpoint of 2 processes is there in all parts"),
        ({1: {0: ["3", "5"]}, 2: {0: ["4"], 1: ["4"]}}, ("5", 1)),
        ({1: {0: ["3"]}, 2: {0: ["4"], 1: ["4"]}}, ("4", 2)),
        ({1: {0: ["3"]}, 2: {0: ["4"], 1: []}}, ("3", 1)),
        ({1: {0: ["3"]}, 2: {0: ["4"]}}, f"rank 1 {OF_TWO}"),
        ({1: {0: ["5"]}, 2: {0: ["4"]}}, ("5", 1)),
    ],
)
def test_the_newest_checkpoint_that_is_whole_is_taken(there, found, tmp_path):
    if isinstance(found, str):
        with pytest.raises(CheckpointError, match=f"{found}: bring the folder's parts back"):
            _newest_whole(there, tmp_path)
    else:
        assert _newest_whole(there, tmp_path) == found


@pytest.mark.parametrize("sessions", ["11", "12"])
def test_one_process_goes_on_from_parts_of_two_only_if_they_were_saved_together(tmp_path, sessions):
    for rank, session in enumerate(sessions):
        part = part_at(tmp_path, rank, 2)
        part.saved_as(16 * session, rank, 2)
        part.save(10, [], {}, {}, keep=1)
    together = sessions == "11"
    with nullcontext() if together else pytest.raises(CheckpointError, match="was saved at another start of the run"):
        assert _of_others(tmp_path, "0000000010", 2, Share()).batch_index == 10


@pytest.mark.slow
@pytest.mark.parametrize("killed_by", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_ends_the_others(tmp_path, killed_by):
    processes = spawn(tmp_path, "endless")
    said = processes[1].stdout
    assert said is not None and said.readline() == "training\n"
    processes[1].send_signal(killed_by)
    (code, text), (other, interrupted) = ended(processes)
    assert code == 1 and other != 0
    # A killed process's kernel closes its connections, or resets those with data that nobody read: gloo says which.
    named = ("rank 1", "another rank", "Connection closed", "Connection reset")
    assert any(words in text for words in named), text
    if killed_by == signal.SIGINT:
        assert "KeyboardInterrupt" in interrupted


@pytest.mark.slow
@pytest.mark.usefixtures("started_anew")
def test_the_documented_command(tmp_path):
    """`torchrun` as the page has it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "examples/own_loop_processes.py"], capture_output=True, text=True, env=environment, timeout=200,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "of the test batch is right" in found.stdout
