"""All products of training and evaluation are float32, where the process has asked torch for less: on a CPU's arrays,
and on tensors as on a GPU, whose settings are made for the CPU's here."""

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from marius_oac.evaluation import inference, scores
from marius_oac.evaluation.inference import encode_nodes
from marius_oac.models.compute.device_products import products_on
from marius_oac.models.ctr import step as clicks
from marius_oac.models.gnn import step as encoded
from marius_oac.models.link_prediction import step as links
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.types import Side, map_arrays
from tests.evaluation.test_evaluate import make_scorer
from tests.evaluation.test_inference import neighbors_in, reading, values_of
from tests.models import batches, test_encoded
from tests.models.ctr import step_batches
from tests.models.gnn.test_layers import INPUTS, LAYERS
from tests.models.gnn.test_layers import make as make_encoder

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_linear_pointwise", "linear"}
MODULES = links, encoded, clicks, scores, inference


class Seen(TorchDispatchMode):
    """What is set for a kind of device when torch multiplies, forward and backward."""

    def __init__(self, backend):
        super().__init__()
        self.backend, self.found = backend, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name.split("::")[1] in PRODUCTS:
            self.note()
        return function(*args, **kwargs or {})

    def note(self):
        self.found.append(torch._C._get_fp32_precision_getter(self.backend, "matmul"))


@pytest.fixture(autouse=True)
def less_is_asked_for():
    torch.set_float32_matmul_precision("medium")
    yield
    assert torch.get_float32_matmul_precision() == "medium"
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(params=["arrays", "tensors"])
def tensors(request, monkeypatch):
    if request.param == "tensors":
        for module in MODULES:
            monkeypatch.setattr(module, "products_on", lambda device, precision: products_on(GPU, precision))
    return request.param == "tensors"


def check(tensors, compute):
    """Layers are looked at, too: on a CPU other threads multiply."""
    with Seen("cuda" if tensors else "mkldnn") as seen:
        hook = register_module_forward_hook(lambda *called: seen.note())
        try:
            compute()
        finally:
            hook.remove()
    assert seen.found and set(seen.found) == {"ieee"}


def links_case(tensors):
    config = batches.configure("complex", compute__products="torch")
    batch = batches.draw(config, batches.Shape())
    step, rows = batch.step(config), batch.rows(config)
    given = ([torch.from_numpy(rows)], batch.tensors()) if tensors else ([rows], batch.data)
    return step, lambda: step.compute(*given, 0)


def encoded_case(tensors):
    config = test_encoded.configure(test_encoded.LAYERS["gcn, two layers"], test_encoded.INPUTS["rows"])
    rows, data = test_encoded.draw(config)
    step = test_encoded.make(config)
    given = ([torch.from_numpy(each) for each in rows], map_arrays(data, torch.from_numpy)) if tensors else (rows, data)
    return step, lambda: step.compute(*given, 0)


def clicks_case(tensors):
    config, batch = step_batches.configure(), step_batches.draw("equal")
    step, rows = batch.step(config), batch.rows(config)
    given = ([torch.from_numpy(each) for each in rows], batch.tensors()) if tensors else (rows, batch.data)

    def compute():
        step.compute(*given, 0)
        step.predict(*given)

    return step, compute


@pytest.mark.parametrize("case", [links_case, encoded_case, clicks_case])
def test_steps(case, tensors):
    step, compute = case(tensors)
    check(tensors, compute)
    step.close()


def test_all_nodes(tmp_path, tensors):
    edges = np.random.default_rng(0).integers(0, 30, (90, 2))
    encoder, lanes = make_encoder(LAYERS[0], LAYERS[3]).float(), ThreadPool(1)
    neighbors = neighbors_in(tmp_path, edges, 30)
    check(
        tensors,
        lambda: encode_nodes(encoder, reading(values_of(30)), INPUTS, neighbors, tmp_path / "out.npy", lanes, CPU),
    )
    lanes.close()


@pytest.mark.parametrize("in_pieces", [False, True])
def test_scores(monkeypatch, tensors, in_pieces):
    scorer = make_scorer("complex", 1, 40, 3)
    monkeypatch.setattr(scores.LinkScorer, "on_cores", not in_pieces)
    decoder = scorer.decoder
    query = decoder.query
    monkeypatch.setattr(decoder, "query", lambda *given: query(*given) @ torch.eye(4))  # as one of a user's may be
    given, relations = np.arange(5), np.zeros(5, np.int64)
    check(tensors, lambda: scorer.scores(scorer.queries(given, relations, Side.TAIL), scorer.vectors(range(40))))
    values = torch.ones(3, 4)
    check(tensors, lambda: scorer._among_in_torch(torch.ones(5, 4), values, np.zeros((5, 2), np.int64)))
