"""The configuration of any task. Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.config.node_classification import NodeClassificationConfig

TaskConfig = Config | NodeClassificationConfig | CtrConfig
"""What `load_config` and `build_config` make; its `task` says which."""


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> TaskConfig:
    """Reads a YAML file; see `BaseConfig.load`."""
    return cast(TaskConfig, Config.load(path, overrides))


def build_config(
    tree: Mapping[str, Any], source: str | None = None, lines: Mapping[tuple[Any, ...], int] | None = None
) -> TaskConfig:
    """Validates a tree of plain values; see `BaseConfig.build`."""
    return cast(TaskConfig, Config.build(tree, source=source, lines=lines))


def kernel_groups(config: TaskConfig, over_nodes: bool = False) -> tuple[str, ...]:
    """The groups of compiled kernels that a run uses (`kernels/signatures.txt`)."""
    added = {
        "encoder": getattr(config, "encoder", None),
        "disk": config.storage.on_disk,
        "nodes": over_nodes,
        "bfloat16": config.compute.precision == "bfloat16",
    }
    return (config.kernels, *(group for group, used in added.items() if used))
