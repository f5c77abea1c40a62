"""Files that a run on a click log is given to go on with: all of them can be trained on, or the run is as before."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac import open_run, resume, train
from marius_oac.data.logs import files as log_files
from marius_oac.data.logs.files import LazyBlock, scan_files
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.run_log import RunLog
from marius_oac.errors import InputError
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.training.cluster import _not_taken_in
from tests.click_logs import ctr_config, small_log
from tests.nodes.worlds import together
from tests.run_folders import contents, says


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Two days, and the second one with a row that has no label, row 251."""
    folder = tmp_path_factory.mktemp("days")
    first, second = (small_log(folder / f"day_{day}.parquet", seed=day, new=day) for day in range(2))
    table = pq.read_table(second)
    labels = table["label"].to_pylist()
    labels[250] = None
    broken = table.set_column(0, "label", pa.array(labels, pa.int8()))
    pq.write_table(broken, folder / "bad.parquet", row_group_size=100)
    return first, second, folder / "bad.parquet"


def test_a_bad_row_in_new_files_leaves_the_run_as_it_was(days, tmp_path, command):
    first, second, bad = days
    config = ctr_config(first, "training.epochs=1", "checkpoint.every_batches=4")
    train(config, tmp_path / "run")
    train(config, tmp_path / "other")
    before = contents(tmp_path / "run")
    code, _, err = command("resume", tmp_path / "run", "--data", second, "--data", bad)  # both of them
    assert code == 2 and says(err, "bad.parquet: row 251: column 'label' has no label")
    assert contents(tmp_path / "run") == before
    code, _, err = command("resume", tmp_path / "run")
    assert code == 0 and "has ended after 1 epochs" in err[-1]
    assert command("resume", tmp_path / "run", "--data", second)[0] == 0
    resume(tmp_path / "other", data=[str(second)])
    one, other = (open_run(tmp_path / name).summary for name in ("run", "other"))
    assert one["tables.embeddings_4.sha256"] == other["tables.embeddings_4.sha256"]


def test_what_was_checked_is_what_is_trained_on(days, monkeypatch):
    monkeypatch.setattr(log_files, "BLOCK_EXAMPLES", 70)
    config = ctr_config(list(days[:2]))
    files = scan_files(config.data.train, config.data)
    pieces = [Pieces(file.path) for file in files]
    log_files.check_rows(files, config.data, pieces)
    assert all(
        len(each.known()) == 4 and None not in each.known() for each in pieces
    )  # the footer and three row groups


def test_nodes_check_a_part_each_and_refuse_alike(days, monkeypatch):
    monkeypatch.setattr(log_files, "BLOCK_EXAMPLES", 64)
    config, checked = ctr_config(days[0]), []
    log = RunLog.start(config).extended(config, [str(days[2])])
    pieces = [Pieces(file.path) for file in log.files[1:]]
    task = SimpleNamespace(
        check_new_data=lambda first, share: log_files.check_rows(
            log.files[first:], config.data, pieces, share.rank, share.count
        )
    )
    real = LazyBlock.check
    monkeypatch.setattr(LazyBlock, "check", lambda self: (checked.append(self.size), real(self)))

    def check(group):
        share = SimpleNamespace(rank=group.rank, count=group.size)
        node = SimpleNamespace(task=task, group=group, peers=ClusterPeers(group), share=share, trains=True)
        with pytest.raises(InputError) as found:
            NodesHome.check_new_data(node, 1)
        return str(found.value)

    said = together(ThreadGroup.members(2), check)
    assert said == ["node rank 1: " + f"{days[2]}: row 251: column 'label' has no label"] * 2
    assert sorted(checked) == [44, 64, 64, 64, 64]  # each block once; row 251 is in the fourth, the second node's
    assert json.loads(log.dump())["legs"][1]["first"] == 1


def test_a_command_that_is_started_again_does_not_take_the_same_files_in_twice(days):
    saved = ctr_config(list(days[:2]))
    assert _not_taken_in([str(days[1])], saved) == () and _not_taken_in([], saved) == []
    for data in ([str(days[2])], [str(days[0])], [str(days[1]), str(days[2])]):
        assert _not_taken_in(data, saved) == data
