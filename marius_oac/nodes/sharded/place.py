"""What depends on the place of a process in a run over nodes: its configuration, its GPU, the name of its part."""

from __future__ import annotations

import json

import torch

from marius_oac.config.task import TaskConfig
from marius_oac.errors import ConfigError, InputError
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.launch.cluster import Place, names
from marius_oac.runs.checkpoints.parts import part_name
from marius_oac.runs.session import gpu_address, pick_device
from marius_oac.runtime.machine.topology import running_kernel
from marius_oac.training import products


def config_of(config: TaskConfig, place: Place) -> TaskConfig:
    """Returns the run's configuration with this process's own threads, device and budgets, and a number in place of
    each `auto` of the pipeline: processes that wait for each other can't measure what one of them should change.

    Unless a GPU is configured, the trainers that torchrun started on this machine take one after the other.
    """
    node, overrides = place.node, []
    if place.threads:
        overrides.append(f"threads={place.threads}")
    if place.device:
        overrides.append(f"device={place.device}")
    elif config.device == "auto" and torch.cuda.device_count():
        overrides.append(f"device=cuda:{place.beside % torch.cuda.device_count()}")
    if node.memory:
        overrides.append(f"storage.memory={int(node.memory) // node.processes}")
    if node.path:
        overrides.append(f"storage.path={json.dumps(list(node.path))}")
    return with_fixed_numbers(config.replace(*overrides))


def with_fixed_numbers(config: TaskConfig) -> TaskConfig:
    """See `PipelineConfig.with_fixed_numbers`."""
    return config.model_copy(update={"pipeline": config.pipeline.with_fixed_numbers()})


def check_gpus(config: TaskConfig, group: Group) -> None:
    """Raises InputError, on all nodes, if two processes would compute on one GPU; collective."""
    try:
        address = gpu_address(pick_device(config.device))
    except ConfigError:  # no such GPU: `agreed_home` reports it for all processes together
        address = None
    every = group.gather((running_kernel(), address))
    for number, mine in enumerate(every):
        other = every.index(mine)
        if mine[1] and other < number:
            raise InputError(
                f"{group.names[other]} and {group.names[number]} would share the GPU {mine[1]}, and each trainer needs "
                "its own: start fewer, say which with `gpus`, or --set device=cpu",
                "nodes",
            )


def name_of(place: Place) -> str:
    """The name of a process's part of a run."""
    return part_name(names(place.cluster)[place.rank])


def check_config(config: TaskConfig, trainers: int) -> None:
    """Raises ConfigError for settings that several nodes, or this number of trainers, don't support."""
    if config.pipeline.mode == "async-delta":
        raise ConfigError("'async-delta' is for one node; over several ones use oac, sync or async", "pipeline.mode")
    if config.pipeline.order != "plan":
        raise ConfigError("over several nodes batches are computed in plan order", "pipeline.order")
    nodes, dense = config.nodes, config.nodes.dense
    if nodes.parts is not None:
        _check_parts(config, nodes.parts, trainers)
    if config.pipeline.mode == "async" and nodes.dispatches:
        raise ConfigError(
            "'async' is for nodes.mode sync; where batches are dispatched use oac or sync", "pipeline.mode"
        )
    if config.pipeline.mode == "async" and dense.lockstep:
        what = f"'{dense.kind}' needs trainers in lockstep, and the mode is 'async'; use easgd, ma or bmuf"
        raise ConfigError(what, "nodes.dense.kind")
    if nodes.dispatches and (nodes.mode_options.parts or 1) > config.training.batch_size:
        what = f"{nodes.mode_options.parts} parts of a batch of {config.training.batch_size} examples"
        raise ConfigError(what, "nodes.mode_options.parts")
    if "hop-bw" in nodes.used and nodes.mode_options.backups >= trainers:
        raise ConfigError(f"hop-bw would wait for none of {trainers} trainers", "nodes.mode_options.backups")


def _check_parts(config: TaskConfig, parts: int, trainers: int) -> None:
    """Raises ConfigError for what virtual parts can't be trained with."""
    wrong = None
    if trainers > parts:
        wrong = f"{parts} parts are too few for {trainers} trainers: each needs one"
    elif config.pipeline.mode == "async":
        wrong = "pipeline.mode 'async' has no order of sums; use oac or sync"
    elif config.nodes.dispatches or config.nodes.mode == "auto":
        wrong = "parts are for nodes.mode sync; where batches are dispatched sums depend on who is first"
    elif config.nodes.dense.kind != "allreduce":
        wrong = f"nodes.dense.kind '{config.nodes.dense.kind}' has a replica for each trainer; use allreduce"
    elif pick_device(config.device).type != "cpu":
        wrong = "parts are summed in memory: they need device=cpu"
    if wrong:
        raise ConfigError(wrong, "nodes.parts")


def agreed_products(config: TaskConfig, own: TaskConfig, group: Group) -> tuple[TaskConfig, list[str]]:
    """The configuration with the library that the first process has chosen for products, by its `own`: the same for
    all; its remarks are for its user. Collective."""
    library, notes = ("", []) if group.rank else products.chosen(own)
    return config.with_products(group.gather(library)[0]), notes
