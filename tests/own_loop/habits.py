"""What people do in loops of their own, each written once for plain torch and for an engine: results are the same."""

import itertools
import random

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

import marius_oac.torch as mt

KEYS, DIMENSION = 24, 4


class Network(nn.Module):
    def __init__(self, items, users):
        super().__init__()
        self.items, self.users = items, users
        torch.manual_seed(5)
        self.out = nn.Linear(2 * DIMENSION, 1)

    def forward(self, batch):
        return self.out(torch.cat([self.items(batch["item"]), self.users(batch["user"])], 1))[:, 0]


class Ours:
    """A network over tables of an engine."""

    def __init__(self, optimizer="Adagrad", decay=0.0, **given):
        self.model = Network(mt.Embedding(DIMENSION, **given), mt.Embedding(DIMENSION, seed=1, **given))
        self.rows = getattr(mt, optimizer)(self.model, lr=0.1, weight_decay=decay)
        self.dense = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.clip, self.whole = mt.clip_grad_norm_, self.model
        self.engine = mt.Engine(self.model, {"items": "item", "users": "user"}, [self.rows, self.dense])
        self.batches = self.engine.batches

    def edit(self, change, batch):
        """Changes the rows of a batch beside a step."""
        for each in self.rows.param_groups[0]["params"]:
            change(each.data)

    def tables(self):
        """The rows of all keys of both tables."""
        self.model.eval()
        every = torch.arange(KEYS)
        found = [each(every).detach().clone() for each in (self.model.items, self.model.users)]
        self.model.train()
        return found


class Plain:
    """The same in plain torch; gradients are sparse where the optimizer takes nothing else."""

    def __init__(self, like, optimizer="Adagrad", decay=0.0):
        sparse = {"sparse": True} if optimizer == "Adam" else {}
        self.model = Network(*(nn.Embedding.from_pretrained(each, freeze=False, **sparse) for each in like.tables()))
        own = [self.model.items.weight, self.model.users.weight]
        given = {"weight_decay": decay} if decay else {}
        self.rows = getattr(torch.optim, "SparseAdam" if optimizer == "Adam" else optimizer)(own, lr=0.1, **given)
        self.dense = torch.optim.SGD(self.model.out.parameters(), lr=0.1)
        self.clip = lambda given, norm: nn.utils.clip_grad_norm_(list(given.parameters()), norm)
        self.batches = iter

    def edit(self, change, batch):
        for table, field in ((self.model.items, "item"), (self.model.users, "user")):
            keys = batch[field].unique()
            table.weight.data[keys] = change(table.weight.data[keys])

    def tables(self):
        return [self.model.items.weight.detach(), self.model.users.weight.detach()]


def batches(count=12, size=6, seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        item, user = torch.randint(0, KEYS, (2, size), generator=draw)
        yield {"item": item, "user": user, "y": torch.randn(size, generator=draw)}


def loss_of(of, batch):
    return functional.mse_loss(of.model(batch), batch["y"])


def step(of):
    of.rows.step()
    of.dense.step()


def zero_grad(of, **given):
    of.rows.zero_grad(**given)
    of.dense.zero_grad(**given)


def train(of, batch):
    loss = loss_of(of, batch)
    loss.backward()
    step(of)
    zero_grad(of)
    return loss.item()


# What is as in torch: each returns what is compared, beside rows and parameters.


def accumulate(of):
    for number, batch in enumerate(of.batches(batches())):
        (loss_of(of, batch) / 4).backward()
        if number % 4 == 3:
            step(of)
            zero_grad(of)


def accumulate_beyond_the_end(of):
    losses = []
    for _ in range(3):
        for number, batch in enumerate(of.batches(batches(6))):
            losses.append(loss_of(of, batch))
            losses[-1].backward()
            if number % 4 == 3:
                step(of)
                zero_grad(of)
    return [each.item() for each in losses]


def accumulate_and_clip(of):
    norms = []
    for number, batch in enumerate(of.batches(batches())):
        loss_of(of, batch).backward()
        norms.append(of.clip(of.model, 0.7).item())
        if number % 3 == 2:
            step(of)
            zero_grad(of)
    return norms


def zero_grad_first(of):
    for batch in of.batches(batches()):
        loss = loss_of(of, batch)
        zero_grad(of)
        loss.backward()
        step(of)


def zero_grad_in_place(of):
    for number, batch in enumerate(of.batches(batches())):
        zero_grad(of, set_to_none=False)
        loss_of(of, batch).backward()
        if number % 3:
            step(of)


def skip_bad_batches(of):
    for number, batch in enumerate(of.batches(batches())):
        loss = loss_of(of, batch)
        if number % 5 == 1:
            continue
        loss.backward()
        if number % 5 != 2:
            step(of)
        zero_grad(of)


def scale_gradients(of):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number, batch in enumerate(of.batches(batches())):
        zero_grad(of)
        scaler.scale(loss_of(of, batch) * (float("inf") if number in (0, 7) else 1)).backward()
        scaler.step(of.rows)
        scaler.step(of.dense)
        scaler.update()
    return scaler.get_scale()


def clip_by_norm(of, kind=2.0):
    norms = []
    for batch in of.batches(batches()):
        loss_of(of, batch).backward()
        norms.append(of.clip(of.model, 0.3).item())
        step(of)
        zero_grad(of)
    return norms


def schedule(of):
    made = [
        make(each)
        for each in (of.rows, of.dense)
        for make in (
            lambda it: lr_scheduler.StepLR(it, 3, 0.5),
            lambda it: lr_scheduler.LambdaLR(it, lambda epoch: 1 / (1 + epoch)),
            lambda it: lr_scheduler.OneCycleLR(it, 0.2, total_steps=20, cycle_momentum=False),
        )
    ]
    plateau = lr_scheduler.ReduceLROnPlateau(of.rows, patience=1)
    for batch in of.batches(batches()):
        loss = train(of, batch)
        for each in made:
            each.step()
        plateau.step(loss)
    return of.rows.param_groups[0]["lr"]


def two_losses(of):
    for batch in of.batches(batches()):
        found = of.model(batch)
        found.sum().backward(retain_graph=True)
        (found - batch["y"]).abs().mean().backward()
        step(of)
        zero_grad(of)


def penalise_gradients(of):
    for batch in of.batches(batches()):
        vectors = of.model.items(batch["item"])
        (slope,) = torch.autograd.grad((vectors**3).sum(), vectors, create_graph=True)
        (slope.square().mean() + loss_of(of, batch)).backward()
        step(of)
        zero_grad(of)


def step_by_closure(of):
    for batch in of.batches(batches()):

        def closure(batch=batch):
            zero_grad(of)
            loss = loss_of(of, batch)
            loss.backward()
            return loss

        of.rows.step(closure)
        of.dense.step(closure)


def leave_early(of):
    for _ in range(3):
        for number, batch in enumerate(of.batches(batches())):
            train(of, batch)
            if number == 4:
                break


def leave_before_the_step(of):
    for _ in range(2):
        for number, batch in enumerate(of.batches(batches())):
            loss_of(of, batch).backward()
            if number == 4:
                break
            step(of)
            zero_grad(of)


def go_on_after_an_error(of):
    for _ in range(2):
        try:
            for number, batch in enumerate(of.batches(batches())):
                train(of, batch)
                if number == 3:
                    raise ArithmeticError
        except ArithmeticError:
            zero_grad(of)


def freeze_a_table(of):
    for epoch in range(3):
        of.model.items.requires_grad_(epoch != 1)
        for batch in of.batches(batches(5)):
            train(of, batch)


def evaluate_amid_training(of):
    losses = []
    for batch in of.batches(batches()):
        train(of, batch)
        of.model.eval()
        with torch.no_grad():
            losses.append(loss_of(of, next(batches(seed=9))).item())
        of.model.train()
    return losses


def look_without_gradients(of):
    losses = []
    for batch in of.batches(batches()):
        with torch.no_grad():
            losses.append(loss_of(of, batch).item())
        train(of, batch)
    return losses


def hook_gradients(of):
    seen = []
    of.model.items.register_full_backward_hook(lambda module, _, gradients: seen.append(gradients[0].norm().item()))
    for batch in of.batches(batches()):
        train(of, batch)
    return seen


def load_in_workers(of):
    torch.manual_seed(3)
    loader = torch.utils.data.DataLoader([*batches()], batch_size=None, shuffle=True, num_workers=1,
                                         multiprocessing_context="fork")  # fmt: skip
    for batch in of.batches(loader):
        train(of, batch)


def autocast(of):
    for batch in of.batches(batches()):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(of, batch)
        loss.backward()
        step(of)
        zero_grad(of)


def add_parameters_later(of):
    more = nn.Parameter(torch.zeros(1))
    for number, batch in enumerate(of.batches(batches())):
        if number == 2:
            of.dense.add_param_group({"params": [more], "lr": 0.5})
        functional.mse_loss(of.model(batch) + more, batch["y"]).backward()
        step(of)
        zero_grad(of)
    return more.item()


def step_only_the_network(of):
    for batch in of.batches(batches()):
        loss_of(of, batch).backward()
        of.dense.step()
        zero_grad(of)


def step_twice(of):
    for batch in of.batches(batches()):
        loss_of(of, batch).backward()
        step(of)
        step(of)
        zero_grad(of)


def clamp_rows(of):
    for number, batch in enumerate(of.batches(batches())):
        if number % 3:
            train(of, batch)
        of.edit(lambda values: values.clamp_(-0.4, 0.4), batch)


def backward_after_step(of):
    for number, batch in enumerate(of.batches(batches())):
        loss_of(of, batch).backward()
        if number % 2 == 0:
            step(of)
            loss_of(of, batch).backward()
        else:
            step(of)
            zero_grad(of)


def accumulate_nothing(of):
    for number, batch in enumerate(of.batches(batches(18))):
        (loss_of(of, batch) * (number % 3)).backward()
        if number % 3 == 2:
            step(of)
            zero_grad(of)


def create_graph(of):
    for number, batch in enumerate(of.batches(batches())):
        loss_of(of, batch).backward(create_graph=True)
        if number % 2:
            step(of)
            zero_grad(of)


def at_random(seed):
    """A loop that does what it may in any order; the same for the same seed."""

    def habit(of):
        draw, losses = random.Random(seed), []
        for epoch in range(draw.randint(1, 3)):
            count = draw.randint(2, 12)
            stop = draw.choice([None, None, draw.randrange(count)])
            for number, batch in enumerate(of.batches(batches(count, seed=seed + epoch))):
                if draw.random() < 0.2:
                    zero_grad(of, set_to_none=draw.random() < 0.5)
                for _ in range(draw.choice([0, 1, 1, 1, 2])):
                    (loss_of(of, batch) * draw.choice([1, 1, 0.5, 0, 3])).backward()
                if draw.random() < 0.2:
                    of.clip(of.model, 0.5)
                if number == stop:
                    break
                if draw.random() < 0.4:
                    step(of)
                    zero_grad(of, set_to_none=draw.random() < 0.7)
                if draw.random() < 0.15:
                    of.model.eval()
                    losses.append(loss_of(of, next(batches(seed=99))).item())
                    of.model.train()
        return losses

    return habit


def count_missing_keys(of):
    train_one = itertools.islice(of.batches(batches()), 1)
    for batch in train_one:
        train(of, batch)
    other = type(of)(of) if isinstance(of, Plain) else Ours()
    found = other.model.load_state_dict({"out.weight": of.model.out.weight}, strict=False)
    return sorted(found.missing_keys)


AS_IN_TORCH = {
    "`if k % 4 == 3: step(); zero_grad()`": accumulate,
    "the same, with gradients left at the end of an epoch": accumulate_beyond_the_end,
    "the same, clipped at each batch": accumulate_and_clip,
    "`zero_grad` before `backward`": zero_grad_first,
    "`zero_grad(set_to_none=False)`": zero_grad_in_place,
    "skip a batch: `continue`, or no `step`": skip_bad_batches,
    "`GradScaler`, which skips steps": scale_gradients,
    "`mt.clip_grad_norm_(model, max_norm)`": clip_by_norm,
    "schedulers: `StepLR`, `LambdaLR`, `OneCycleLR`, `ReduceLROnPlateau`": schedule,
    "`backward(retain_graph=True)`, several losses": two_losses,
    "`torch.autograd.grad(..., create_graph=True)`": penalise_gradients,
    "`backward(create_graph=True)`": create_graph,
    "`step(closure)`": step_by_closure,
    "`break`, then another epoch": leave_early,
    "`break` between `backward` and `step`": leave_before_the_step,
    "an error in the loop that is caught": go_on_after_an_error,
    "`model.items.requires_grad_(False)`": freeze_a_table,
    "`model.eval()` and `torch.no_grad()` amid an epoch": evaluate_amid_training,
    "`torch.no_grad()` in training mode, on the batch at hand": look_without_gradients,
    "`register_full_backward_hook`": hook_gradients,
    "a `DataLoader` with workers": load_in_workers,
    "`torch.autocast`": autocast,
    "`dense.add_param_group`": add_parameters_later,
    "no `rows.step()`, and `zero_grad`": step_only_the_network,
    "two calls of `step` for one `backward`": step_twice,
    '`for p in rows.param_groups[0]["params"]: p.data.clamp_(-1, 1)`, after `step` or without': clamp_rows,
    "`backward` again after `step`, and `zero_grad` a batch later": backward_after_step,
    "`load_state_dict(strict=False)` returns the missing `items.weight`": count_missing_keys,
}
