"""The configuration of any task. Imports neither torch nor numba."""

from __future__ import annotations

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.config.node_classification import NodeClassificationConfig

TaskConfig = Config | NodeClassificationConfig | CtrConfig
"""What `Config.load` and `Config.build` make; its `task` says which."""
