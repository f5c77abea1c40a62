"""An evaluation that trainers share: the metrics of one, whoever scored what; how it ends for all."""

import io
import signal
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.nodes.trainers import train_together
from marius_oac.data.graphs.given import GivenNegatives
from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.given import evaluate_given
from marius_oac.evaluation.link_prediction import DRAW_EDGES, DrawnCandidates, _Ranking, evaluate
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded import evaluation
from marius_oac.nodes.sharded.evaluation import SharedEvaluation
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.runtime import signals
from marius_oac.runtime.signals import StopSignal
from marius_oac.tasks.ctr import evaluate as clicks
from marius_oac.tasks.ctr.predict import ClickPredictor
from marius_oac.types import Side
from tests.click_logs import ctr_config, small_log
from tests.evaluation.test_evaluate import make_edges, make_scorer
from tests.nodes.test_node_tasks import classes, labelled, links  # noqa: F401 - a fixture
from tests.nodes.worlds import together

SERVER = [True, False, True, True]  # the second only serves rows


def shared(trains, make, round_seconds=0.0):
    """What each process has when trainers share `make`."""
    groups = ThreadGroup.members(len(trains))
    return together(groups, lambda group: SharedEvaluation(group, trains, round_seconds).evaluate(make))


def errors_of(trains, make, kind):
    """The error of each process; then all are still in step."""

    def heard(group):
        with pytest.raises(kind) as caught:
            SharedEvaluation(group, trains, 0.0).evaluate(make)
        assert len(group.gather("in step")) == len(trains)
        return caught.value

    return together(ThreadGroup.members(len(trains)), heard)


@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_the_leading_process_gets_what_all_have_found_in_their_order(monkeypatch, piece):
    monkeypatch.setattr(evaluation, "PIECE_BYTES", piece)
    turns = []

    def make(among):
        for _ in range(5 * among.rank):  # others wait, in rounds
            among.turn()
            turns.append(among.rank)
        found = [among.collected(io.BytesIO(text * among.rank), 3 * len(text)).read() for text in (b"one", b"", b"2")]
        return [each.decode() for each in found] if among.rank == 0 else ["no", "use"]

    assert shared(SERVER, make) == [["oneoneone", "", "222"]] * 4 and sorted(set(turns)) == [1, 2]


@pytest.mark.parametrize("which", [0, 2])
def test_a_signal_to_one_stops_all(which):
    def make(among):
        if among.rank == which:
            raise StopSignal(signal.SIGTERM)
        while True:
            among.turn()

    assert [error.number for error in errors_of(SERVER, make, StopSignal)] == [signal.SIGTERM] * 4


def test_a_signal_stops_one_that_waits_for_the_others(monkeypatch):
    def make(among):
        if among.rank == 0:
            monkeypatch.setattr(evaluation, "stop_asked", lambda: signal.SIGHUP)  # in whoever is done
            return None
        while True:
            among.turn()

    assert [error.number for error in errors_of(SERVER, make, StopSignal)] == [signal.SIGHUP] * 4


def test_a_signal_waits_while_processes_are_together(monkeypatch):
    """Else it would leave a call half done, and the next calls of the others would meet another one."""
    inside, real = [], SharedEvaluation._round

    def round_(self, *said):
        requests = signals._polite
        if requests is not None:
            inside.append((said[0], requests.at_once))
        return real(self, *said)

    monkeypatch.setattr(SharedEvaluation, "_round", round_)
    with signals.stop_on_interrupt(lambda: None):
        made = SharedEvaluation(ThreadGroup.members(1)[0], [True], 0.0).evaluate(
            lambda among: (among.turn(), signals._polite.at_once, among.collected(io.BytesIO(b"a"), 1).read().decode())
        )
    assert made[1:] == [True, "a"] and inside == [("works", False), ("gives", False), ("done", False)]


@pytest.mark.parametrize(
    "error, told",
    [(InputError("is bad", "row 3"), "node rank 2: row 3: is bad"), (MariusOacError("NaN"), "node rank 2: NaN")],
)
def test_a_mistake_that_one_finds_is_told_to_all(error, told):
    def make(among):
        if among.rank == 1:
            raise error
        among.collected(io.BytesIO(), 0)

    heard = errors_of(SERVER, make, type(error))
    assert [str(each) for each in heard] == [told, told, str(error), told]
    assert {type(each) for each in heard} == {type(error)}


def test_nobody_is_told_of_a_lost_process_which_all_will_miss(monkeypatch):
    def make(among):
        raise NodeLost("node1", "is silent")

    monkeypatch.setattr(SharedEvaluation, "_round", lambda *said: pytest.fail("asked the others"))
    with pytest.raises(NodeLost):
        SharedEvaluation(ThreadGroup.members(1)[0], [True]).evaluate(make)


def test_a_full_disk_is_told_when_all_have_sent(monkeypatch):
    class Full(io.BytesIO):
        def write(self, piece):
            raise OSError(28, "No space left on device")

    def make(among):
        try:
            among.collected(Full(b"abc"), 9)
        except OSError as error:
            raise InputError("full") from error
        return among.collected(io.BytesIO(), 0) and None

    heard = errors_of(SERVER, make, InputError)
    assert [str(each) for each in heard] == ["full", *["node rank 0: full"] * 3]


def test_another_number_of_bytes_is_an_error_of_all():
    heard = errors_of(SERVER, lambda among: among.collected(io.BytesIO(b"ab"), 7), MariusOacError)
    assert all("6 bytes" in str(error) for error in heard if "node" not in str(error))


@pytest.mark.parametrize("units, count", [(0, 3), (2, 5), (10, 3), (1024, 4)])
def test_shares_are_all_units_once(units, count):
    shares = []
    for rank in range(count):
        sharing = Sharing()
        sharing.rank, sharing.count = rank, count
        shares.append(sharing.share(units))
    assert [unit for share in shares for unit in share] == list(range(units))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert list(sharing.of_others(units)) == [unit for share in shares[1:] for unit in share]


@pytest.mark.parametrize("trainers", [2, 5])
@pytest.mark.parametrize("drawn", [None, 30])
@pytest.mark.parametrize("count", [3, DRAW_EDGES + 77])
def test_ranks_are_those_of_one_process(trainers, drawn, count):
    """Also with metrics of the user's, which see all ranks in the order of the edges."""
    scorer = make_scorer("complex", 2, 60, 1, exact=False)
    edges = make_edges(np.random.default_rng(0), count, 60)
    known = KnownAnswers.build([edges], edges, 3)
    drawing = drawn and DrawnCandidates(drawn, edges, 0)
    own = {"own": lambda ranks: float(np.dot(ranks, np.arange(ranks.size) % 7))}

    def make(among):
        found = evaluate(scorer, edges, known, drawing, 1, own=own, among=among)
        return found and {name: value for name, value in found.as_dict().items() if name != "seconds"}

    expected = make(UNSHARED)
    assert shared([True] * trainers, make, 1.0) == [expected] * trainers


@pytest.mark.parametrize("trainers", [2, 5])
def test_negatives_of_the_graph_are_shared(trainers):
    scorer, random = make_scorer("complex", 2, 60, 1, exact=False), np.random.default_rng(0)
    edges, table = make_edges(random, 83, 60), random.integers(0, 60, (83, 9))
    plain = make_scorer("dot", 2, 60, 1, exact=False)
    for scores, negatives in [
        (scorer, GivenNegatives("mrr", {Side.TAIL: table, Side.HEAD: table[::-1]}, None, {})),
        (plain, GivenNegatives("hits@20", {}, random.integers(0, 60, (57, 2)), {})),
    ]:

        def make(among, scores=scores, negatives=negatives):
            found = evaluate_given(scores, edges, negatives, memory=1, among=among)
            return found and {name: value for name, value in found.items() if name != "seconds"}

        assert shared([True] * trainers, make, 1.0) == [make(UNSHARED)] * trainers


def test_each_process_ranks_its_share(monkeypatch):
    scorer, edges, scored = make_scorer("dot", 2, 300, 1), make_edges(np.random.default_rng(0), 2000, 300), {}
    real, pieces = _Ranking._together, []

    def together(self, tiles, work):
        for now in real(self, tiles, work):
            counted = 300 * sum(len(tile.places) for tile in now) * (work.__class__ is partial)
            scored[self._among.rank] = scored.get(self._among.rank, 0) + counted
            pieces.append(self._among)
            yield now

    monkeypatch.setattr(_Ranking, "_together", together)
    shared([True] * 4, lambda among: evaluate(scorer, edges, memory=1, among=among) and None)
    assert scored == dict.fromkeys(range(4), 2 * 2000 * 300 // 4)
    counted = Counted()
    evaluate(scorer, edges, memory=1, among=counted)
    assert counted.turns == pieces.count(counted) > 1


class Counted(Sharing):
    turns = 0

    def turn(self):
        self.turns += 1


class _Fake(ClickPredictor):
    """Predicts what lies in the block; notes the examples."""

    def __init__(self, config, labels, probabilities):
        self._config, self._told, self.unknown_ids, self.predicted = config, (labels, probabilities), 0, 0

    def blocks(self, files, blocks, with_labels, shown=True):
        for each in blocks:
            first = sum(file.rows for file in files[: each.file]) + each.number * self._config.evaluation.batch_size
            labels, probabilities = (part[first : first + each.examples] for part in self._told)
            self.unknown_ids += first
            self.predicted += each.examples
            yield SimpleNamespace(size=each.examples, labels=labels), probabilities


@pytest.mark.parametrize("by_million", [False, True])
@pytest.mark.parametrize("trains", [[True, True], SERVER, [True] * 5])
def test_metrics_of_clicks_are_those_of_one_process(monkeypatch, trains, by_million):
    monkeypatch.setattr(clicks, "MILLION", 25)
    random = np.random.default_rng(3)
    labels, probabilities = (random.random(83) < 0.3).astype(np.float32), random.random(83).astype(np.float32)
    files = [SimpleNamespace(rows=rows) for rows in (31, 7, 45)]
    config = SimpleNamespace(evaluation=SimpleNamespace(batch_size=10))
    fakes = []

    def make(among):
        fakes.append(_Fake(config, labels, probabilities))
        return clicks.evaluate_files(fakes[-1], files, by_million, among)

    counted = Counted()
    expected = make(counted)
    assert counted.turns == 10
    assert len(expected.get("millions", ())) == (3 if by_million else 0)
    assert shared(trains, make) == [expected] * len(trains)
    most = -(-10 // sum(trains))  # of the ten blocks
    assert sum(each.predicted for each in fakes) == 2 * 83 and max(each.predicted for each in fakes[1:]) <= 10 * most


@pytest.mark.parametrize("kind", ["clicks", "ranks", "encoded", "classes"])
def test_trainers_evaluate_the_leading_ones_replica(labelled, tmp_path, monkeypatch, kind):  # noqa: F811
    """Batch norm's statistics differ between trainers without parts. Each has its own again afterwards."""
    real, compared = NodesHome._together, []

    def together_and_alone(self, parts, make):
        before = {name: each.clone() for name, each in parts.step.dense_state().items()}
        found = real(self, parts, make)
        after = parts.step.dense_state()
        assert all(torch.equal(before[name], after[name]) for name in before)
        if self.peers.leads:
            alone = make(UNSHARED)
            for each in (found or {}, alone or {}):
                each.pop("seconds", None)
            assert found == alone
            compared.append(found)
        self.peers.wait()
        return {**found, "seconds": 0.0} if found else found

    monkeypatch.setattr(NodesHome, "_together", together_and_alone)
    if kind == "clicks":
        days = [small_log(tmp_path / f"day_{day}.parquet", seed=day) for day in range(2)]
        config = ctr_config(
            days, "training.epochs=1", "training.progressive=true", "evaluation.batch_size=16",
            "model={network: deepfm, dimension: 4, hidden: [8], batch_norm: true}", test=days[-1],
        )  # fmt: skip
    elif kind == "classes":
        config = classes(labelled, "training.epochs=1")
    else:
        sage = ("encoder.layers=[{kind: sage, neighbors: 3}]", "encoder.embeddings=5") if kind == "encoded" else ()
        config = links(labelled, "training.epochs=1", "model.decoder=dot", *sage)
    train_together(config, 3)
    assert len([each for each in compared if each]) == (3 if kind == "clicks" else 1)
