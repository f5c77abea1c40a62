"""Training on a Ray cluster: what `--on ray` and `marius_oac.ray` call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from marius_oac.config.task import TaskConfig
from marius_oac.errors import InputError, MariusOacError
from marius_oac.nodes.launch.on_ray.driver import run
from marius_oac.nodes.launch.on_ray.placing import RayRequest
from marius_oac.nodes.sharded.place import check_config
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runtime.resuming import started_with
from marius_oac.tasks.registry import entry_of
from marius_oac.training import local


def start_training(
    config: TaskConfig, out: str | Path | None, trainers: int | tuple[int, int], trace: bool = False, **how: Any
) -> int:
    """Trains on Ray; returns the exit code.

    Args:
        out: the run's folder, on a file system that all nodes share; None: as `train` makes it.
        trainers: see `RayRequest`.
        how: `restarts`, `timeout` and `encryption` of `RayRequest`.

    Raises:
        InputError: the config can't be trained so, the folder is taken, or Ray or its cluster does not fit; no actor
            was started.
    """
    path = _folder(config, out)
    request = _request(config, {}, trainers, how)
    check_config(config, request.most)
    with started_with(request.options):
        RunFolder.check_new(path)
    job = {"do": "train", "config": config.dump(), "out": str(path), "trace": trace, "options": request.options}
    return run(replace(request, job=job))


def start_resuming(
    run_folder: Path, changed: list[str], trainers: int | tuple[int, int], resumed: Mapping[str, Any], **how: Any
) -> int:
    """Continues a run on Ray; returns the exit code. See `start_training`.

    Args:
        changed: keys of the config, as `--set` gives them.
        resumed: the other arguments of `resume_on_nodes`, plain JSON values.
    """
    config = RunPlaces(RunFolder.open(run_folder)).config().replace(*changed)
    request = _request(config, {}, trainers, how)
    job = {"do": "resume", "run": str(run_folder.absolute()), "set": changed, "resumed": dict(resumed)}
    return run(replace(request, job=job | {"options": request.options}))


def train(
    config: TaskConfig,
    out: str | Path | None = None,
    *,
    trainers: int | tuple[int, int],
    restarts: int = 3,
    timeout: float = 60.0,
    encryption: bool = False,
    trace: bool = False,
) -> local.Run:
    """Trains on a Ray cluster, with one actor for each trainer, and returns the run.

    Ray's cluster is the one that this process uses, that RAY_ADDRESS names or that runs on this machine; else an
    instance is started here for this run alone.

    Args:
        config: as for `marius_oac.train`.
        out: the run's folder, on a file system that all nodes share.
        trainers: number of processes; a range, as (2, 4), which needs `nodes.parts`: as many as Ray has room for, when
            training begins and after each loss.
        restarts: how often they are started again, from the last checkpoint, after one was lost.
        timeout: seconds after which a silent process or node is lost.
        encryption: encrypt rows and their gradients between nodes.
        trace: write trace.json.

    Raises:
        InputError: see `start_training`.
        MariusOacError: training has failed, as a message on standard error says; `exit_code` as of the command.
    """
    how = {"restarts": restarts, "timeout": timeout, "encryption": encryption}
    code = start_training(config, out, trainers, trace, **how)
    if code:
        error = MariusOacError(f"training on Ray has ended with exit code {code}")
        error.exit_code = code
        raise error
    return local.open_run(_folder(config, out))


def _folder(config: TaskConfig, out: str | Path | None) -> Path:
    return (Path(out) if out else Path("runs") / entry_of(config).default_name(config)).absolute()


def _request(
    config: TaskConfig, job: Mapping[str, Any], trainers: int | tuple[int, int], how: Mapping[str, Any]
) -> RayRequest:
    gpu = None if config.device == "auto" else config.device != "cpu"
    request = RayRequest(trainers, job, config.threads, gpu, config.storage.memory or 0, **how)
    request.check()
    if request.least < request.most and config.nodes.parts is None:
        what = f"{request.least}..{request.most} would give other bits with each number; --set nodes.parts=8: the same"
        raise InputError(what, "--trainers")
    return request
