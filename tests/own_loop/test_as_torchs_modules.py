"""What is done to models of torch's, done to modules over tables: each works, or is refused in one line."""

import copy
import io
import os
import pickle

import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from tests.own_loop.loops import Loop, key_batches


def tied():
    linear, items = nn.Linear(4, 9), mt.Embedding(4)
    items.weight = linear.weight


def tied_the_other_way():
    linear, items = nn.Linear(4, 9), mt.Embedding(4)
    linear.weight = items.weight


def loaded():
    model = nn.Sequential(mt.Embedding(4))
    model.load_state_dict(nn.Sequential(nn.Embedding(3, 4)).state_dict())


def traced():
    with (loop := Loop()).engine:
        torch.jit.trace(loop.model.eval(), torch.tensor([1]))


def model():
    return nn.Sequential(mt.Embedding(4), nn.Linear(4, 1))


REFUSED = {
    "Embedding.weight: there is no tensor of all rows": lambda: model()[0].weight,
    "Embedding.num_embeddings: there is no fixed number of rows": lambda: model()[0].num_embeddings,
    "Embedding.weight: it can't be set or tied: `shares=`": tied,
    "there is no tensor of all rows: call the module": tied_the_other_way,
    "Embedding: it can't be copied or pickled": lambda: copy.deepcopy(model()),
    "it can't be copied or pickled: make a new one": lambda: copy.copy(model()[0]),
    "so that each has a table of its own": lambda: pickle.dumps(model()),
    "can't be copied or pickled": lambda: torch.save(model(), io.BytesIO()),
    "0.weight: rows are no part of a state_dict: load it before mt.convert": loaded,
    "Embedding: rows stay float32 on the CPU, not torch.float16 on cpu": lambda: model().half(),
    "not torch.bfloat16 on cpu: move the other modules one by one": lambda: model().to(torch.bfloat16),
    "not torch.float64 on cpu": lambda: model().double(),
    "not torch.float32 on meta": lambda: model().to("meta"),
    "Embedding: rows can't be shared with other processes": lambda: model().share_memory(),
    "Embedding: torch.jit.script can't compile it: rows come from a table": lambda: torch.jit.script(model()),
    "Embedding: DataParallel can't copy it": lambda: model()[0]._replicate_for_data_parallel(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", REFUSED)
def test_what_can_not_be_done_is_told(line):
    with pytest.raises(InputError) as error:
        REFUSED[line]()
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow  # torch imports much for it
@pytest.mark.filterwarnings("ignore")
def test_a_trace_is_refused():
    with pytest.raises(InputError, match="Embedding: it can't be traced: rows come from a table"):
        traced()


def test_a_module_has_no_weight_for_those_who_ask():
    items = mt.Embedding(4)
    assert not hasattr(items, "weight") and not hasattr(items, "num_embeddings") and not hasattr(items, "other")
    nn.Sequential(mt.Embedding(4, std=0.1), nn.Linear(4, 1)).apply(
        lambda each: nn.init.zeros_(each.weight) if hasattr(each, "weight") else None
    )
    assert [*nn.Sequential(items).parameters()] == [] and items.embedding_dim == items.dimension == 4


def test_a_state_is_that_of_the_other_modules():
    one, other = model(), model()
    assert {*one.state_dict()} == {"1.weight", "1.bias"}
    assert other.load_state_dict(one.state_dict(), strict=False).missing_keys == ["0.weight"]
    assert torch.equal(other[1].weight, one[1].weight)


def test_what_changes_nothing_may_be_done():
    with (loop := Loop()).engine as engine:
        for done in (nn.Module.float, nn.Module.cpu, lambda each: each.to("cpu", torch.float32), nn.Module.zero_grad):
            done(loop.model)
        loop.model.requires_grad_(False).requires_grad_(True)
        loop.model.to_empty(device="cpu")
        for batch in engine.batches(key_batches(2)):
            assert torch.equal(nn.DataParallel(loop.model)(batch["item"]), loop.items(batch["item"]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_has_the_same_bits_with_one_break_of_its_graph():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.items, self.out = mt.EmbeddingBag(4), nn.Linear(4, 1)

        def forward(self, bags):
            return self.out(torch.relu(self.items(bags) * 2))

    def rows(compiled):
        graphs, losses = [], []

        def backend(graph, _):
            graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
            return graph

        plain = Model()
        optimizer = mt.Adagrad(plain, lr=0.1)
        run = torch.compile(plain, backend=backend) if compiled else plain
        with mt.Engine(plain, {"items": 0}, [optimizer]) as engine:
            for (bags,) in engine.batches([[each["item"][:1].repeat(3, 2)] for each in key_batches(6)]):
                loss = run(bags).pow(2).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses, graphs

    torch.compiler.reset()
    (expected, _), (found, graphs) = rows(compiled=False), rows(compiled=True)
    torch.compiler.reset()
    assert found == expected and len(graphs) == 1 and "linear" in str(graphs) and "index_select" not in str(graphs)


def in_a_fork(use):
    """What `use` raises in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            use()
            told = "nothing"
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        return told.read().decode()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_process_has_no_engine_and_may_read_when_it_is_closed():
    loop = Loop()
    with loop.engine as engine:
        for _ in engine.batches(key_batches(3)):
            line = "a forked process has none of the engine's threads: make an engine there, or spawn it"
            for use in (
                lambda: loop.items.eval()(torch.tensor([1])),
                lambda: engine.batches([]),
                lambda: engine.save("none"),
                lambda: engine.load("none"),
                lambda: engine.peek({"item": [1]}).__enter__(),
            ):
                assert line in in_a_fork(use)
            assert in_a_fork(engine.close) == "nothing"
        assert line in in_a_fork(lambda: engine.batches([]))
    assert in_a_fork(lambda: loop.items.eval()(torch.tensor([1]))) == "nothing"


def test_ranks_of_a_group_have_no_engine(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(InputError, match="2 processes: share the rows among them by group="):
        Loop()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    assert Loop()
