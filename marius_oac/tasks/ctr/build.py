"""Builds what trains on a click log: network, tables, step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.tables import FeatureTable, feature_tables
from marius_oac.models.compute.multiply import Layer
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.update import Update
from marius_oac.models.ctr.network import Network, make_network
from marius_oac.models.ctr.rows import BagColumn, SequenceColumn, TableColumns
from marius_oac.models.ctr.schema import Field, Schema, SequenceField
from marius_oac.models.ctr.step import CtrStep
from marius_oac.runs.stores import Tables
from marius_oac.runtime.machine import cgroups
from marius_oac.runtime.thread_pool import ALONE, ThreadPool
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.table import KeyTable, SharedKeys, shared_by_all
from marius_oac.storage.sizes import MEMORY_OF_ROWS
from marius_oac.tasks.ctr.progressive import PredictingStep
from marius_oac.types import present

_SHARE = 0.8  # of the free memory that rows and keys may take
KEY_BYTES = 24
_MOST_ROWS = 2**32 - 2


def make_schema(config: CtrConfig) -> Schema:
    """Returns the schema of the network's inputs: fields are the single-valued features, then the pooled ones, in
    config order."""
    data, default = config.data, config.model.dimension
    pooled = data.multi_valued
    fields = tuple(Field(each.name, each.dimension or default) for each in (*data.single_valued(), *pooled))
    sequences = tuple(SequenceField(each.name, each.dimension or default, each.max_values) for each in data.sequences)
    return Schema(data.num_numbers, fields, sequences, config.model.target)


def make_ctr_network(config: CtrConfig) -> Network:
    """Returns the network with its initial parameters. Raises ConfigError if it can't take the features."""
    return make_network(make_schema(config), config.model, config.seed)


def tables_of(config: CtrConfig, network: Network) -> list[FeatureTable]:
    """Returns the tables of a configuration; without embeddings, rows are first-order weights alone."""
    return feature_tables(config, weights_only=network.first_order and not network.embeddings)


def columns_of(config: CtrConfig, tables: Sequence[FeatureTable]) -> list[TableColumns]:
    """Returns the columns of each table, as the step takes them."""
    data = config.data
    place = {each.name: number for number, each in enumerate((*data.single_valued(), *data.multi_valued))}
    pooling = {each.name: each.pooling for each in data.multi_valued}
    most = {each.name: each.max_values for each in data.sequences}
    return [
        TableColumns(
            name=table.name,
            dimension=table.dimension,
            singles=tuple(place[name] for name in table.singles),
            bags=tuple(BagColumn(name, pooling[name], place[name]) for name in table.bags),
            sequences=tuple(SequenceColumn(name, most[name]) for name in table.sequences),
        )
        for table in tables
    ]


def row_layout(config: CtrConfig, table: FeatureTable, network: Network) -> RowLayout:
    """Returns the layout of a row: [embedding | first-order weight | optimizer state]."""
    width = table.dimension + bool(network.first_order)
    return RowLayout(width, RowOptimizer(config.training.optimizer).state_width(width), config.storage.dtype)


def capacity_of(config: CtrConfig, layout: RowLayout) -> int:
    """Returns the capacity of a table in rows: `keys.capacity`, or as many as fit into the memory at hand, rows and
    keys; where rows lie on disk, keys and page tables."""
    if config.keys.capacity:
        return min(config.keys.capacity, _MOST_ROWS)
    memory, row_bytes = _SHARE * cgroups.free_memory(), float(layout.row_bytes)
    if config.storage.paged:
        memory = max(memory - present(config.storage.memory), 0)
        row_bytes *= MEMORY_OF_ROWS
    return min(int(memory / (row_bytes + KEY_BYTES)), _MOST_ROWS)


def make_key_table(
    config: CtrConfig,
    tables: Tables,
    name: str,
    shared: Sequence[SharedKeys] = (shared_by_all,),
    pool: ThreadPool = ALONE,
) -> KeyTable:
    """Makes an empty table; the initial value of a row is a pure function of (seed, table, key). `shared`, `pool`:
    see `KeyTable`."""
    optimizer = RowOptimizer(config.training.optimizer)
    initial = RowInitial("normal", config.model.init_scale, config.seed, name, optimizer.initial_state)
    keys = config.keys
    return KeyTable(tables.make(name, 0, initial), keys.admit_after, keys.drop_after, tables.scratch, shared, pool)


def largest_layer(config: CtrConfig) -> Layer:
    """The sizes of the network's layer with the most work; those of `model.hidden` where it is the user's own."""
    model, vectors = config.model, len(make_schema(config).fields)
    inputs = make_schema(config).width
    stacks = [(inputs, *model.hidden)]
    if model.network == "dlrm":
        stacks = [(config.data.num_numbers, *model.bottom), (vectors * (vectors + 1) // 2, *model.hidden)]
    elif model.network == "dcnv2":
        stacks.append((inputs, inputs))
    layers = [Layer(config.training.batch_size, *pair) for each in stacks for pair in zip(each, each[1:], strict=False)]
    return max(layers, key=lambda layer: layer.work, default=Layer(config.training.batch_size, inputs, 1))


def make_ctr_step(
    config: CtrConfig,
    tables: Sequence[FeatureTable],
    network: Network,
    device: torch.device,
    threads: int,
    update: Update | None = None,
) -> CtrStep:
    """Makes the step; `update` says what follows from its gradients."""
    make = PredictingStep if config.predicts_batches else CtrStep
    return make(config, columns_of(config, tables), network, device, threads, update)
