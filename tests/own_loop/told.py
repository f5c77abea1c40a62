"""What people do in loops of their own that can't be as in torch, with a part of the line that tells them. Each is done
with an engine that has trained two batches; the third one is at hand, and has gradients."""

import copy
import io
import pickle
import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

import marius_oac.torch as mt
from tests.own_loop.habits import DIMENSION, Network, Plain, batches, loss_of, step, zero_grad


def without_zero_grad(of, batch):
    step(of)


def zero_grad_of_the_model(of, batch):
    step(of)
    of.model.zero_grad()


def initialise(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.zeros_(module.weight)


def reload(of, batch):
    kept = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.save(of.model.state_dict(), kept)
    kept.seek(0)
    Network(mt.Embedding(DIMENSION), mt.Embedding(DIMENSION)).load_state_dict(torch.load(kept))


def clip(by):
    def habit(of, batch):
        by(of.model.parameters(), 0.1)
        step(of)

    return habit


def another_optimizer(of, batch):
    of.engine.close()
    with mt.Engine(of.model, {"items": "item", "users": "user"}, [of.rows]) as engine:
        of.dense.step()
        engine.save("not there")


def pass_before(of, batch):
    for _ in of.batches(batches(1)):
        of.engine.save("not there")


def backward_later(of, batch):
    losses = [loss_of(of, each) for each in of.batches(batches(2))]
    sum(losses).backward()


TOLD = {
    "no `zero_grad`": (without_zero_grad, "rows still have the gradients of batch 2, which a step has used: call the"),
    "`model.zero_grad()` alone": (zero_grad_of_the_model, "(model.zero_grad() does not reach rows)"),
    "gradients that are not finite, and neither `step` nor `zero_grad`": (
        lambda of, batch: (zero_grad(of), (loss_of(of, batch) * float("inf")).backward()),
        "rows have gradients of batch 2 that are not finite, and no step has used them",
    ),
    "`model.state_dict()`": (lambda of, batch: of.model.state_dict(), "rows of 'items' are no part of a state_dict"),
    "`load_state_dict` of it": (reload, 'Missing key(s) in state_dict: "items.weight", "users.weight"'),
    "`load_state_dict` of a model of torch's": (
        lambda of, batch: of.model.load_state_dict(Plain(of).model.state_dict()),
        "items.weight: rows are no part of a state_dict: load it before mt.convert",
    ),
    "`copy.deepcopy(model)`": (lambda of, batch: copy.deepcopy(of.model), "it can't be copied or pickled: make a new"),
    "`pickle`, `torch.save(model)`": (lambda of, batch: torch.save(of.model, io.BytesIO()), "it can't be copied or"),
    "`copy.deepcopy(rows)` of the optimizer": (lambda of, batch: copy.deepcopy(of.rows), "can't be copied or pickled"),
    "`pickle` of the optimizer": (lambda of, batch: pickle.dumps(of.rows), "it updates tables, which can't be"),
    "`AveragedModel(model)`": (lambda of, batch: AveragedModel(of.model), "Embedding: it can't be copied or pickled"),
    "an optimizer that is not in `optimizers=`, and `engine.save`": (
        another_optimizer, "parameter 'out.weight' is updated by an optimizer of class SGD that is not in `optimizers`",
    ),
    "`engine.save` after an epoch, or in the next one, while its gradients wait for a step": (
        pass_before, "gradients of batch 2, of a pass before, wait for a step, and no checkpoint has gradients",
    ),
    "`torch.nn.utils.clip_grad_norm_(model.parameters(), ...)`": (
        clip(nn.utils.clip_grad_norm_), "model.parameters() has no rows; mt.clip_grad_norm_(model, max_norm) clips",
    ),
    "`clip_grad_value_(model.parameters(), ...)`": (
        clip(nn.utils.clip_grad_value_), "gradients of the model's parameters were changed after backward, and those",
    ),
    "`mt.clip_grad_norm_(model.parameters(), ...)`": (
        clip(mt.clip_grad_norm_), "there is no table in what it was given: give the model itself",
    ),
    "`model.requires_grad_(False)`": (
        lambda of, batch: (of.model.requires_grad_(False), [*of.batches(batches(1))]),
        "parameters of the model are frozen, and the rows of 'items' are trained: say requires_grad_(False)",
    ),
    "`for p in model.items.parameters()`": (
        lambda of, batch: [each.requires_grad_(False) for each in of.model.items.parameters()],
        "Embedding has no parameters, its rows are in a table: mt.Adagrad(module) trains them",
    ),
    "`model.apply(initialise)`": (
        lambda of, batch: of.model.apply(initialise), "Embedding.apply can't set rows, which are made as keys come",
    ),
    "`nn.init.zeros_(model.items.weight)`, `F.embedding(keys, model.items.weight)`": (
        lambda of, batch: functional.embedding(batch["item"], of.model.items.weight), "there is no tensor of all rows",
    ),
    "`model.half()`, `.to(\"cuda\")`": (lambda of, batch: of.model.half(), "rows stay float32 on the CPU, not"),
    "`model.share_memory()`": (lambda of, batch: of.model.share_memory(), "rows can't be shared with other processes"),
    "`torch.jit.script(model)`": (lambda of, batch: torch.jit.script(of.model), "torch.jit.script can't compile it"),
    "a table in two optimizers": (
        lambda of, batch: mt.Engine(n := Network(mt.Embedding(2), mt.Embedding(2)), {"items": 0, "users": 1},
                                    [mt.SGD(n), mt.SGD(n.items)]),
        "'items' is in several row optimizers of `optimizers`",
    ),
    "`rows.add_param_group`": (lambda of, batch: of.rows.add_param_group({"params": []}), "groups can't be added"),
    "`mt.SGD([{\"params\": model, \"momentum\": 0.9}])`": (
        lambda of, batch: mt.SGD([{"params": of.model, "momentum": 0.9}]), "a group can't have momentum of its own",
    ),
    "`rows.load_state_dict` of an optimizer of torch's": (
        lambda of, batch: of.rows.load_state_dict(Plain(of).rows.state_dict()), "it is the state of another optimizer",
    ),
    "`rows.step()` after the loop": (
        lambda of, batch: (zero_grad(of), [*of.batches(batches(1))], of.rows.step()),
        "there is no batch at hand: call step within the loop",
    ),
    "the sum of several batches' losses, and one `backward`": (
        backward_later, "which was handed back when the loop asked for the next one: call backward before that",
    ),
    "a loop over the loader, without `engine.batches`": (
        lambda of, batch: loss_of(of, next(batches(seed=8))), "was not announced for batch 2",
    ),
    "keys drawn in the loop": (
        lambda of, batch: of.model.items(torch.tensor([10**6])), "key 1000000 was not announced for batch 2",
    ),
    "texts as keys of a table that has had integers": (
        lambda of, batch: next(of.batches([{"item": ["a"], "user": batch["user"]}])),
        "keys are texts, and those of the table so far are integers: 7 and '7' are two keys",
    ),
    "the same in eval mode": (lambda of, batch: of.model.eval().items(["7"]), "keys are texts, and those of the table"),
}  # fmt: skip
