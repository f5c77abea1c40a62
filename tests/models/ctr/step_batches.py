"""Tables, batches and a network for the tests of the step, and what it should do in loops and float64."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from marius_oac.batches import ClickBatch, Jagged, TableIndices
from marius_oac.config.ctr import CtrConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.rows import BagColumn, SequenceColumn, TableColumns
from marius_oac.models.ctr.schema import Inputs
from marius_oac.models.ctr.step import CtrStep
from marius_oac.types import map_arrays
from tests.models import naive

CPU = torch.device("cpu")
NUMBERS = 3

LAYOUTS = {
    "equal": (TableColumns("embeddings_5", 5, (0, 1, 3), (BagColumn("tags", "mean", 2),)),),
    "mixed": (
        TableColumns(
            "embeddings_4", 4, (0, 3), (BagColumn("tags", "sum", 1), BagColumn("words", "mean", 5)),
            (SequenceColumn("seen", 4), SequenceColumn("bought", 3)),
        ),
        TableColumns("embeddings_17", 17, (2,), (BagColumn("parts", "mean", 4),), (SequenceColumn("long", 6),)),
    ),
    "weights": (TableColumns("embeddings_0", 0, (0, 2), (BagColumn("tags", "mean", 1),)),),
    "history": (TableColumns("embeddings_6", 6, (), (), (SequenceColumn("seen", 5),)),),
}  # fmt: skip


class SmallNetwork(Network):
    """Uses every input; how many features there are is seen from the first batch."""

    def __init__(self, layout, first_order: bool, batch_norm: bool = False, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.first_order = first_order
        width = NUMBERS + sum(
            table.dimension * (len(table.singles) + len(table.bags) + len(table.sequences)) for table in layout
        )
        torch.manual_seed(5)
        self.hidden = nn.Linear(width, 7)
        self.norm = nn.BatchNorm1d(7) if batch_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(7, 1)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        fields = list(inputs.fields) if inputs.stacked is None else [inputs.stacked.flatten(1)]
        sums = []
        for _, (padded, lengths) in sorted(inputs.sequences.items()):
            decay = 0.5 ** torch.arange(padded.shape[1]).to(padded)
            sums.append((padded * decay[:, None]).sum(1) / (1 + lengths[:, None]))
        hidden = self.hidden(torch.cat([inputs.numbers, *fields, *sums], 1))
        logits = self.out(self.dropout(torch.relu(self.norm(hidden)))).squeeze(1)
        return logits + inputs.first_order.sum(1) if self.first_order else logits


def configure(**others) -> CtrConfig:
    """`others` are overrides with __ for the dots."""
    config = CtrConfig.build({"task": "ctr", "data": {"train": "none.csv", "categorical": ["a"]}})
    return config.replace(*(f"{key.replace('__', '.')}={value}" for key, value in others.items()))


@dataclass
class Batch:
    """A batch, and values float32 [n, D + weight] of each table."""

    layout: tuple[TableColumns, ...]
    first_order: bool
    values: list[np.ndarray]
    data: ClickBatch[np.ndarray]

    def rows(self, config: CtrConfig) -> list[np.ndarray]:
        optimizer = RowOptimizer(config.training.optimizer)
        return [
            np.pad(each, ((0, 0), (0, optimizer.state_width(each.shape[1]))), constant_values=optimizer.initial_state)
            for each in self.values
        ]

    def network(self, **options) -> SmallNetwork:
        return SmallNetwork(self.layout, self.first_order, **options)

    def step(self, config: CtrConfig, threads: int = 1, **options) -> CtrStep:
        return CtrStep(config, self.layout, self.network(**options), CPU, threads)

    def tensors(self) -> ClickBatch[torch.Tensor]:
        return map_arrays(self.data, torch.tensor)


def draw(layout: str, first_order: bool = True, examples: int = 11, keys: int = 9, seed: int = 0) -> Batch:
    """A random batch; rows of low numbers are the hot ones, the last of each table is in no feature."""
    generator = np.random.default_rng(seed)
    tables = LAYOUTS[layout]

    def picks(*shape):
        return np.minimum((keys * generator.random(shape) ** 3).astype(np.int64), keys - 2)

    def jagged(column):
        lengths = generator.integers(getattr(column, "max_values", 6) + 1, size=examples)
        return Jagged(picks(lengths.sum()), np.concatenate(([0], np.cumsum(lengths))))

    labels = generator.integers(2, size=examples).astype(np.float32)
    numbers = generator.normal(size=(examples, NUMBERS)).astype(np.float32)
    indices = tuple(
        TableIndices(
            picks(len(table.singles), examples), tuple(map(jagged, table.bags)), tuple(map(jagged, table.sequences))
        )
        for table in tables
    )
    values = [generator.normal(0, 0.5, (keys, table.dimension + first_order)).astype(np.float32) for table in tables]
    return Batch(tables, first_order, values, ClickBatch(numbers=numbers, labels=labels, tables=indices))


def naive_inputs(batch: Batch, values: list[torch.Tensor]) -> Inputs:
    """The network's inputs, example by example."""
    size, fields, sequences = len(batch.data.labels), {}, {}

    def bag(jagged, rows, b):
        first, last = jagged.offsets[b : b + 2]
        return [rows[row] for row in jagged.values[first:last]]

    for table, indices, rows in zip(batch.layout, batch.data.tables, values, strict=True):
        nothing = torch.zeros(rows.shape[1], dtype=rows.dtype)
        for i, field in enumerate(table.singles):
            fields[field] = [rows[row] for row in indices.singles[i]]
        for column, jagged in zip(table.bags, indices.bags, strict=True):
            bags = [bag(jagged, rows, b) for b in range(size)]
            parts = [len(each) if column.pooling == "mean" else 1 for each in bags]
            fields[column.field] = [sum(each, nothing) / max(part, 1) for each, part in zip(bags, parts, strict=True)]
        for column, jagged in zip(table.sequences, indices.sequences, strict=True):
            bags = [bag(jagged, rows, b) for b in range(size)]
            padded = [torch.stack(each + [nothing] * (column.max_values - len(each))) for each in bags]
            lengths = torch.tensor([len(each) for each in bags])
            sequences[column.name] = (torch.stack(padded)[..., : table.dimension], lengths)
    stacked = [torch.stack(fields[field]) for field in range(len(fields))]
    weighted = int(batch.first_order)
    embeddings = [each[:, : each.shape[1] - weighted] for each in stacked]
    equal = len({each.shape[1] for each in embeddings}) == 1
    nothing = torch.zeros(size, 0, dtype=values[0].dtype)
    return Inputs(
        numbers=torch.from_numpy(batch.data.numbers).to(values[0].dtype),
        fields=embeddings,
        stacked=torch.stack(embeddings, 1) if equal else None,
        first_order=torch.cat([nothing, *(each[:, -1:] for each in stacked)], 1) if weighted else None,
        sequences=sequences,
    )


class NaiveStep:
    """The step by its formulas, in float64; no dropout."""

    def __init__(self, config: CtrConfig, batch: Batch, **options) -> None:
        self._config, self.network = config, copy.deepcopy(batch.network(**options)).double()
        dense = config.training.dense_optimizer
        common = {"lr": dense.learning_rate, "weight_decay": dense.weight_decay}
        self._dense = {
            "sgd": lambda parameters: torch.optim.SGD(parameters, **common),
            "adagrad": lambda parameters: torch.optim.Adagrad(parameters, eps=dense.epsilon, **common),
            "adam": lambda parameters: torch.optim.Adam(
                parameters, betas=(dense.beta1, dense.beta2), eps=dense.epsilon, **common
            ),
        }[dense.kind](list(self.network.parameters()))

    def compute(self, rows: list[np.ndarray], batch: Batch, timestamp: int) -> tuple[float, list[np.ndarray]]:
        """The loss and the new rows."""
        widths = [each.shape[1] for each in batch.values]
        values = [
            torch.tensor(each[:, :width], dtype=torch.float64, requires_grad=True)
            for each, width in zip(rows, widths, strict=True)
        ]
        inputs = naive_inputs(batch, values)
        labels = torch.from_numpy(batch.data.labels).double()
        p = torch.sigmoid(self.network(inputs))
        weights = torch.ones(()) if batch.data.weights is None else torch.from_numpy(batch.data.weights).double()
        loss = -(weights * (labels * torch.log(p) + (1 - labels) * torch.log(1 - p))).mean()
        squares = sum(value.square().sum() for value in values)
        loss = loss + self._config.training.embedding_l2 / 2 * squares
        self._dense.zero_grad()
        loss.backward()
        self._dense.step()
        new = [
            naive.optimize(self._config.training.optimizer, each, value.grad.numpy(), timestamp + 1)
            for each, value in zip(rows, values, strict=True)
        ]
        return loss.item(), new

    def predict(self, batch: Batch) -> np.ndarray:
        inputs = naive_inputs(batch, [torch.from_numpy(each).double() for each in batch.values])
        with torch.no_grad():
            return torch.sigmoid(self.network.eval()(inputs)).numpy()
