"""Networks against loops over their formulas, in float64; sequences and their padding; networks of a user's own."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.config.ctr import CtrConfig, NetworkConfig
from marius_oac.errors import ConfigError
from marius_oac.models.ctr.layers import mask_of
from marius_oac.models.ctr.network import NETWORKS, make_network
from marius_oac.models.ctr.schema import Field, Inputs, Schema, SequenceField
from tests.device import DEVICE

SIZE = 3


def make_schema(fields, numbers, dimension=4, sequences=(), target=None):
    named = tuple(Field(f"f{i}", dimension) for i in range(fields))
    return Schema(numbers, named, tuple(SequenceField(f"s{i}", dimension, n) for i, n in enumerate(sequences)), target)


def make_config(name, **keys):
    tree = {"network": name, "hidden": (5, 3), "bottom": (6,), "cross_layers": 2, **keys}
    return NetworkConfig(**tree)


def draw_inputs(schema, network, seed=0, lengths=None, size=SIZE):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    fields = tuple(normal(size, field.dimension) for field in schema.fields)
    sequences = {}
    for i, each in enumerate(schema.sequences):
        found = torch.tensor(lengths[i]) if lengths else torch.arange(size) % (each.max_values + 1)
        padded = normal(size, each.max_values, each.dimension)
        for b, length in enumerate(found):
            padded[b, length:] = 0
        sequences[each.name] = padded, found
    equal = len({field.dimension for field in schema.fields}) == 1
    weights = normal(size, len(fields)) if network.first_order else None
    stacked = torch.stack(fields, 1) if equal else None
    return Inputs(normal(size, schema.num_numbers), fields, stacked, weights, sequences)


def make(name, schema, **keys):
    return make_network(schema, make_config(name, **keys), 1).double().eval()


def linear(layer, x):
    """A linear layer, number by number."""
    weight, bias = layer.weight.tolist(), [0.0] * len(layer.weight) if layer.bias is None else layer.bias.tolist()
    return [sum(w * each for w, each in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def mlp(layers, x):
    for layer in layers:
        if isinstance(layer, torch.nn.Linear):
            x = linear(layer, x)
        elif isinstance(layer, torch.nn.ReLU):
            x = [max(each, 0.0) for each in x]
        else:
            raise AssertionError(layer)
    return x


def first_order(network, inputs, b):
    found = network.linear.bias.item() + sum(inputs.first_order[b].tolist())
    return found + (linear(network.linear.numbers, inputs.numbers[b].tolist())[0] if network.linear.numbers else 0.0)


def pairs(vectors):
    return [sum(x * y for x, y in zip(a, b, strict=True)) for i, a in enumerate(vectors) for b in vectors[:i]]


def flat(inputs, b):
    return [x for field in inputs.fields for x in field[b].tolist()] + inputs.numbers[b].tolist()


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def gru(cell, x, state, attention=1.0):
    """Zhou et al., equations 2 to 5; AUGRU is the same with the update gate scaled."""
    n = len(state)
    driven, kept = linear(cell.driven, x), linear(cell.kept, state)
    update, reset = ([sigmoid(driven[g + i] + kept[g + i]) for i in range(n)] for g in (0, n))
    new = [math.tanh(driven[2 * n + i] + reset[i] * kept[2 * n + i]) for i in range(n)]
    return [(1 - attention * u) * s + attention * u * c for u, s, c in zip(update, state, new, strict=True)]


def evolved(evolution, padded, length, target):
    state, interests = [0.0] * evolution.evolution.dimension, []
    for step in range(length):
        state = gru(evolution.extractor, padded[step].tolist(), state)
        interests.append(state)
    query = linear(evolution.attention, target)
    scores = [math.exp(sum(i * q for i, q in zip(interest, query, strict=True))) for interest in interests]
    state = [0.0] * evolution.evolution.dimension
    for interest, score in zip(interests, scores, strict=True):
        state = gru(evolution.evolution, interest, state, score / sum(scores))
    return state


def naive(name, network, inputs, b):
    vectors = [field[b].tolist() for field in inputs.fields]
    if name == "lr":
        return first_order(network, inputs, b)
    if name == "fm":
        return first_order(network, inputs, b) + sum(pairs(vectors))
    if name == "deepfm":
        return first_order(network, inputs, b) + sum(pairs(vectors)) + mlp(network.deep, flat(inputs, b))[0]
    if name == "dlrm":
        numbers = []
        if network.bottom is not None:
            numbers = [max(each, 0.0) for each in mlp(network.bottom[0], inputs.numbers[b].tolist())]
            vectors = [numbers, *vectors]
        return mlp(network.top, numbers + pairs(vectors))[0]
    if name == "dcnv2":
        first = x = flat(inputs, b)
        for layer in network.cross.layers:
            x = [f * each + old for f, each, old in zip(first, linear(layer, x), x, strict=True)]
        return linear(network.last, x + mlp(network.deep, first))[0]
    ends = []
    for i, each in enumerate(network.schema.sequences):
        padded, lengths = inputs.sequences[each.name]
        length = int(lengths[b])
        if name == "dien":
            ends += evolved(network.evolutions[i], padded[b], length, vectors[network.target])
        else:
            ends += [sum(padded[b, :length, j].tolist()) / max(length, 1) for j in range(each.dimension)]
    return mlp(network.deep, flat(inputs, b) + ends)[0]


@settings(deadline=None, max_examples=12)
@given(fields=st.integers(1, 4), numbers=st.integers(0, 3), seed=st.integers(0, 99))
@pytest.mark.parametrize("name", NETWORKS)
def test_the_formula_number_by_number(name, fields, numbers, seed):
    sequences = (3, 2) if name in ("dien", "youtubednn") else ()
    schema = make_schema(fields + (name == "dlrm"), numbers, sequences=sequences, target="f0")
    network = make(name, schema)
    inputs = draw_inputs(schema, network, seed)
    expected = [naive(name, network, inputs, b) for b in range(SIZE)]
    np.testing.assert_allclose(network(inputs).tolist(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_input_has_a_finite_gradient(name):
    sequences = (3,) if name in ("dien", "youtubednn") else ()
    schema = make_schema(2, 2, sequences=sequences, target="f1")
    network = make(name, schema)
    inputs = draw_inputs(schema, network, lengths=[[0, 1, 3]])
    leaves = [*inputs.fields, inputs.numbers, *(padded for padded, _ in inputs.sequences.values())]
    if network.first_order:
        leaves.append(inputs.first_order)
    for leaf in leaves:
        leaf.requires_grad_()
    stacked = torch.stack(inputs.fields, 1)
    network(Inputs(inputs.numbers, inputs.fields, stacked, inputs.first_order, inputs.sequences)).sum().backward()
    used = [leaf for leaf in leaves if leaf.grad is not None]
    assert len(used) >= len(leaves) - len(inputs.fields) * (name == "lr")
    assert all(leaf.grad.isfinite().all() for leaf in used)
    for padded, lengths in inputs.sequences.values():
        for b, length in enumerate(lengths):
            assert (padded.grad[b, length:] == 0).all() and (length == 0 or (padded.grad[b, :length] != 0).any())


@pytest.mark.parametrize("name", ["dien", "youtubednn"])
def test_what_stands_behind_a_sequence_changes_nothing(name):
    schema = make_schema(2, 0, sequences=(4,), target="f1")
    network = make(name, schema)
    inputs = draw_inputs(schema, network, lengths=[[0, 2, 4]])
    before = network(inputs)
    padded, lengths = inputs.sequences["s0"]
    for b, length in enumerate(lengths):
        padded[b, length:] = 7
    assert torch.equal(network(inputs), before)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_seed_decides_and_leaves_no_trace(name, batch_norm):
    sequences = (2,) if name in ("dien", "youtubednn") else ()
    schema = make_schema(2, 2, sequences=sequences, target="f1")
    config = make_config(name, batch_norm=batch_norm, dropout=0.1)
    before = torch.random.get_rng_state()
    first, same, other = (make_network(schema, config, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name, schema, message", [
    ("deepfn", make_schema(2, 0), "there is no network 'deepfn'; known: lr, fm, deepfm"),
    ("nothing.py:Net", make_schema(2, 0), "there is no file nothing.py"),
    ("dlrm", Schema(0, (Field("a", 2), Field("b", 3))), "needs fields of one dimension, not 2, 3"),
    ("dlrm", make_schema(1, 0), "'dlrm' multiplies pairs of vectors"),
    ("fm", make_schema(0, 2), "needs fields of one dimension, not none"),
    ("deepfm", make_schema(2, 0, sequences=(2,)), "'deepfm' makes nothing of sequences such as 's0'"),
    ("dien", make_schema(2, 0, sequences=(2,)), "'dien' needs data.sequences, and the field"),
    ("dien", make_schema(2, 0, target="f0"), "'dien' needs data.sequences, and the field"),
])  # fmt: skip
def test_what_a_network_cannot_take_is_named(name, schema, message):
    with pytest.raises(ConfigError, match=message):
        make_network(schema, make_config(name), 0)


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("text, message", [
    ("class Net(dict): pass", "has no class 'Net' derived from marius_oac.Network"),
    ("def broken(:", "mine.py:1: invalid syntax"),
    ("", "has no class 'Net'"),
    ("from marius_oac import Network\nclass Net(Network): pass", "class 'Net' has no forward"),
    ("from marius_oac import Network as Net", "class 'Net' has no forward"),
    ("\nimport no_such_module_anywhere", "mine.py:2: ModuleNotFoundError: No module named"),
    ("def f():\n    return 1 / 0\nf()", "mine.py:2: ZeroDivisionError"),
])  # fmt: skip
def test_a_file_without_a_network_is_named(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        make_network(make_schema(1, 0), make_config(f"{tmp_path}/mine.py:Net"), 0)


def functional(network, schema):
    """The network as a function of parameters and inputs, and these."""
    inputs = draw_inputs(schema, network, lengths=[[0, 1, 3]] * len(schema.sequences))
    names = list(dict(network.named_parameters()))
    stacked = [] if inputs.first_order is None else [inputs.first_order]
    tensors = [torch.stack(inputs.fields, 1), inputs.numbers, *stacked]
    tensors += [padded for padded, _ in inputs.sequences.values()]
    parameters = [parameter.detach() for parameter in network.parameters()]

    def f(*given):
        parameters, stack, numbers = given[: len(names)], given[len(names)], given[len(names) + 1]
        rest = list(given[len(names) + 2 :])
        weights = rest.pop(0) if network.first_order else None
        lengths = [found for _, found in inputs.sequences.values()]
        sequences = dict(zip(inputs.sequences, zip(rest, lengths, strict=True), strict=True))
        batch = Inputs(numbers, stack.unbind(1), stack, weights, sequences)
        return torch.func.functional_call(network, dict(zip(names, parameters, strict=True)), (batch,))

    return f, [tensor.clone().requires_grad_() for tensor in (*parameters, *tensors)]


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_finite_differences(name):
    sequences = (3,) if name in ("dien", "youtubednn") else ()
    schema = make_schema(3, 2, sequences=sequences, target="f1")
    f, tensors = functional(make(name, schema, batch_norm=True), schema)
    assert torch.autograd.gradcheck(f, tensors, fast_mode=True)


@pytest.mark.parametrize("name", ["deepfm", "dlrm", "dcnv2", "dien", "youtubednn"])
def test_batch_norm_is_that_of_its_formula(name):
    """Training: with the batch's mean and variance; one example more than one is enough."""
    sequences = (3,) if name in ("dien", "youtubednn") else ()
    schema = make_schema(2, 2, sequences=sequences, target="f1")
    network = make(name, schema, batch_norm=True, hidden=(4,)).train()
    norm = next(each for each in (network.top if name == "dlrm" else network.deep) if hasattr(each, "running_mean"))
    seen = []
    norm.register_forward_hook(lambda _, given, found: seen.extend((given[0].tolist(), found.tolist())))
    network(draw_inputs(schema, network, size=2))
    for j in range(4):
        x = [row[j] for row in seen[0]]
        mean = sum(x) / 2
        deviation = math.sqrt(sum((each - mean) ** 2 for each in x) / 2 + norm.eps)
        for b in range(2):
            assert seen[1][b][j] == pytest.approx((x[b] - mean) / deviation, abs=1e-12)


def test_dropout_is_drawn_while_training_alone():
    schema = make_schema(2, 2)
    network = make("deepfm", schema, dropout=0.5, hidden=(64,))
    inputs = draw_inputs(schema, network)
    assert torch.equal(network(inputs), network(inputs))
    network.train()
    with torch.random.fork_rng(devices=()):
        found = []
        for seed in (1, 1, 2):
            torch.default_generator.manual_seed(seed)
            found.append(network(inputs))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["dcnv2", "youtubednn", "dien"])
def test_fields_may_differ_in_dimension(name):
    sequences = (SequenceField("s0", 3, 2),) if name != "dcnv2" else ()
    schema = Schema(1, (Field("a", 2), Field("b", 5)), sequences, "b")
    network = make(name, schema)
    inputs = draw_inputs(schema, network)
    assert inputs.stacked is None
    np.testing.assert_allclose(
        network(inputs).tolist(), [naive(name, network, inputs, b) for b in range(SIZE)], rtol=1e-9
    )


def naive_auxiliary(evolution, padded, lengths, draws):
    """Zhou et al., equation 6, with the mean over the steps of a sequence; and the number of pairs that count."""
    rows, total, pairs = padded.tolist(), 0.0, 0
    values = [rows[b][t] for b in range(len(rows)) for t in range(lengths[b])]
    for b, sequence in enumerate(rows):
        state, losses = [0.0] * evolution.extractor.dimension, []
        for t in range(int(lengths[b]) - 1):
            state = gru(evolution.extractor, sequence[t], state)
            click, other = sequence[t + 1], values[int(draws[b][t] * len(values))]
            if click != other:
                dots = [sum(h * e for h, e in zip(state, each, strict=True)) for each in (click, other)]
                losses.append(-math.log(sigmoid(dots[0])) - math.log(1 - sigmoid(dots[1])))
        pairs += len(losses)
        total += sum(losses) / max(len(losses), 1)
    return total / len(rows), pairs


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 99), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=5))
@example(0, [(0, 0), (1, 1)])
def test_the_auxiliary_loss_number_by_number(seed, lengths):
    schema = make_schema(2, 1, sequences=(5, 3), target="f0")
    network = make("dien", schema, auxiliary_loss=0.5).train()
    inputs = draw_inputs(schema, network, seed, list(zip(*lengths, strict=True)), len(lengths))
    few = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    few[1, :2] = few[0, :2]
    for padded, found in inputs.sequences.values():  # items that come again
        picks = torch.randint(0, 4, padded.shape[:2], generator=torch.Generator().manual_seed(seed + 1))
        padded[:] = few[picks] * mask_of(padded, found)[:, :, None]
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        draws = [torch.rand(len(lengths), n - 1, dtype=torch.float64).tolist() for n in (5, 3)]
        torch.default_generator.manual_seed(seed)
        network(inputs)
    each = zip(network.evolutions, inputs.sequences.values(), draws, strict=True)
    expected = [naive_auxiliary(evolution, *sequence, drawn) for evolution, sequence, drawn in each]
    assert network.auxiliary_loss.item() == pytest.approx(0.5 * sum(loss for loss, _ in expected), rel=1e-9, abs=1e-12)
    if not any(pairs for _, pairs in expected):
        assert network.auxiliary_loss.item() == 0


def test_there_is_an_auxiliary_loss_in_training_alone_and_if_it_has_weight():
    schema = make_schema(2, 1, sequences=(5,), target="f0")
    for training, weight in ((False, 1.0), (True, 0.0)):
        network = make("dien", schema, auxiliary_loss=weight).train(training)
        network(draw_inputs(schema, network))
        assert network.auxiliary_loss is None


def test_an_auxiliary_loss_moves_interests_clicks_and_negatives():
    """And nothing behind the interests: neither attention nor the evolution of interests."""
    schema = make_schema(2, 1, sequences=(5,), target="f0")
    network = make("dien", schema).train()
    inputs = draw_inputs(schema, network, lengths=[[5, 0, 2]])
    padded, _ = inputs.sequences["s0"]
    padded.requires_grad_()
    network(inputs)
    network.auxiliary_loss.backward()
    moved = {name for name, each in network.named_parameters() if each.grad is not None and each.grad.any()}
    assert moved and {name.split(".")[2] for name in moved} == {"extractor"}
    assert padded.grad[0].any(1).all() and not padded.grad[1].any() and not padded.grad[2, 2:].any()


@pytest.mark.device
@pytest.mark.parametrize("name", NETWORKS)
def test_a_device_repeats_its_bits_and_follows_the_cpu(name):
    sequences = (3,) if name in ("dien", "youtubednn") else ()
    schema = make_schema(3, 2, sequences=sequences, target="f1")
    f, tensors = functional(make(name, schema), schema)
    expected = torch.autograd.grad(f(*tensors).sum(), tensors, allow_unused=True)
    seen = []
    for _ in range(2):
        f, tensors = functional(make(name, schema), schema)
        network, moved = make(name, schema).to(DEVICE), [each.detach().to(DEVICE).requires_grad_() for each in tensors]
        names, inputs = list(dict(network.named_parameters())), moved[len(list(network.parameters())) :]
        weights = inputs.pop(2) if network.first_order else None
        found = torch.tensor([0, 1, 3], device=DEVICE)
        batch = Inputs(
            inputs[1], inputs[0].unbind(1), inputs[0], weights, {"s0": (inputs[2], found)} if sequences else {}
        )
        parameters = dict(zip(names, moved, strict=False))
        logits = torch.func.functional_call(network, parameters, (batch,))
        seen.append(torch.autograd.grad(logits.sum(), moved, allow_unused=True))
    for one, two, cpu in zip(*seen, expected, strict=True):
        assert (one is None) == (cpu is None)
        if cpu is not None:
            assert torch.equal(one, two)
            torch.testing.assert_close(one.cpu(), cpu)


@pytest.mark.usefixtures("all_code_is_known")
def test_the_example_of_a_network_of_ones_own():
    from pathlib import Path

    example = Path(__file__).parents[3] / "examples" / "my_network.py"
    schema = make_schema(3, 1)
    config = CtrConfig.build({"task": "ctr", "data": {"train": "x", "categorical": ["a"]}}).model
    config = NetworkConfig(**{**config.model_dump(), "network": f"{example}:TwoTowers"})
    network = make_network(schema, config, 0).double()
    assert network(draw_inputs(schema, network)).shape == (SIZE,)
