"""Makes the configured algorithm of dense agreement."""

from __future__ import annotations

from marius_oac.config.dense import DenseConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.kstep import KStep
from marius_oac.nodes.dense.shadow import Assign, Averaging, Bmuf, Easgd
from marius_oac.nodes.dense.sync_server import SyncServers
from marius_oac.nodes.dense.tree_reduce import TreeReduce
from marius_oac.nodes.groups.contract import Group


def make_dense_sync(
    config: DenseConfig,
    group: Group,
    lockstep: bool,
    servers: SyncServers | None = None,
    assign: Assign | None = None,
    parts: int | None = None,
) -> DenseAgreement:
    """Returns the configured algorithm; nothing is exchanged before its `attach`.

    Args:
        config: the section.
        group: of the trainers.
        lockstep: whether the trainers make the same steps.
        servers: easgd's sync servers, whose alpha is `config.alpha`.
        assign: see `Easgd`.
        parts: number of virtual parts of a batch (`nodes.parts`); None: off.

    Raises:
        ConfigError: the kind needs lockstep.
        ValueError: easgd without servers.
    """
    if config.lockstep and not lockstep:
        raise ConfigError(f"'{config.kind}' needs trainers in lockstep; use easgd, ma or bmuf", "dense.kind")
    if config.kind == "allreduce":
        return AllReduce(group) if parts is None else TreeReduce(group, parts)
    if config.kind == "kstep":
        moments = (config.beta1, config.beta2)
        return KStep(group, config.k, config.warm_up, moments, config.epsilon)
    shadow = (config.alpha, config.iterations_between, config.background)
    if config.kind == "ma":
        return Averaging(group, *shadow)
    if config.kind == "bmuf":
        return Bmuf(group, *shadow, eta=config.eta, momentum=config.momentum, nesterov=config.nesterov)
    if servers is None or assign is None:
        raise ValueError("easgd needs sync servers and an assignment of parameters to them")
    return Easgd(group, *shadow, servers=servers, assign=assign)
