"""The Ray cluster that a run uses: one at hand, which stays as it is, or an instance on this machine that ends with the
run.

An instance of ours listens on the loopback alone where Ray was not imported before, has no dashboard, sends no usage
statistics, and asks every connection for a token that is made for it.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from marius_oac.errors import InputError, NodeLost, how_to_install
from marius_oac.nodes.launch.agent import variables
from marius_oac.nodes.launch.cluster import this_machine
from marius_oac.nodes.launch.frozen import frozen_end
from marius_oac.nodes.launch.on_ray.reaper import reaping, users_of
from marius_oac.runtime.signals import StopSignal

EXTRA = f"Ray is not installed: {how_to_install('ray')}"
_OBJECTS = 80 << 20  # bytes of Ray's object store, about the least that it takes: no rows go through it
_LONGEST = 24  # characters of a folder for Ray's sockets, whose paths may have 107
_LONGEST_NOTE = 1024  # characters
_OURS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for listening on 127.0.0.1 alone, on any system
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a change to come
    "RAY_AUTH_MODE": "token",
}
_HEALTH = {"health_check_initial_delay_ms": 2000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@contextmanager
def cluster(trainers: int, token: str, timeout: float) -> Iterator[ModuleType]:
    """Yields Ray, connected to a cluster: the one that this process uses already, the one that RAY_ADDRESS names, or
    one that this user has started on this machine by `ray start`; else to an instance for this block alone.

    Args:
        trainers: for which an instance has room.
        token: that an instance asks for, the same whenever this process starts one: Ray's library reads it once.
        timeout: seconds for which processes of an instance may be stopped before they are killed.

    Raises:
        InputError: Ray is not installed, or nothing answers at RAY_ADDRESS.
        NodeLost: an instance has not started.
    """
    named = os.environ.get("RAY_ADDRESS")
    address = named or running()
    own = {} if address else _OURS | {"RAY_AUTH_TOKEN": token}
    if address and not named and asks_for_token():
        own = {"RAY_AUTH_MODE": "token"}
    with variables(own):  # Ray reads some of them when it is imported
        try:
            import ray
        except ImportError:
            raise InputError(EXTRA, "--on ray") from None
        if ray.is_initialized():
            yield ray
            return
        with _instance(ray, trainers, timeout) if address is None else _connection(ray, address):
            yield ray


def running() -> str | None:
    """The address of a cluster that this user has started on this machine, where `ray start` has noted it.

    A note by another user is passed over: who is connected to a cluster unpickles what comes from it.
    """
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        with open(noted, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:  # no pipe's writer
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            address = file.read(_LONGEST_NOTE).strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError):  # there is none, or it has ended
        return None
    return address


def asks_for_token() -> bool:
    """Whether this user's own clusters ask for a token, as those of `ray start` do where there is one. Ray's own
    programs assume the same of a cluster that they have found, and look for no token where they are told its address.
    """
    there = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return "RAY_AUTH_MODE" not in os.environ and (there or (Path.home() / ".ray" / "auth_token").exists())


@contextmanager
def _connection(ray: ModuleType, address: str) -> Iterator[None]:
    try:
        _init(ray, address=address)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        why = " ".join(str(error).split())[:200]
        token = "" if "RAY_AUTH_MODE" in os.environ else "; does it ask for a token? RAY_AUTH_MODE=token"
        raise InputError(f"no Ray cluster answers at {address}: {why}{token}", "RAY_ADDRESS") from None
    try:
        yield
    finally:
        ray.shutdown()  # this process's connection; the cluster stays


@contextmanager
def _instance(ray: ModuleType, trainers: int, timeout: float) -> Iterator[None]:
    each = max(1, this_machine().cores // trainers)
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST else "/tmp"
    folder = tempfile.mkdtemp(prefix="marius-oac-", dir=short)
    # Ray's library would wait for its own processes for as long as they are stopped, at its end, too.
    with reaping(folder), frozen_end(lambda: users_of(folder, os.getpid()), timeout):
        try:
            _start(ray, num_cpus=each * trainers, _temp_dir=folder)
            yield
        finally:
            ray.shutdown()


def _start(ray: ModuleType, **options: Any) -> None:
    try:
        _init(
            ray,
            address="local",
            include_dashboard=False,
            object_store_memory=_OBJECTS,
            _node_ip_address="127.0.0.1",
            _system_config=_HEALTH,
            **options,
        )
    except Exception as error:  # Ray raises a plain one where a process of its own has not come up
        raise NodeLost("this machine's Ray", f"has not started: {' '.join(str(error).split())[:200]}") from error


def _init(ray: ModuleType, **options: Any) -> None:
    """`ray.init`, whose handler of SIGTERM, which ends the process with another exit code, stays for that long alone.

    Ray has actors import from the folder that it is called in, before everything else, and starts its own processes
    there. So that is not the present folder: what lies there is not to be taken for a module.

    Raises:
        StopSignal: it was called.
    """
    here = threading.current_thread() is threading.main_thread()
    ours = signal.getsignal(signal.SIGTERM) if here else None
    try:
        with chdir("/"):
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except SystemExit as error:
        if error.code != signal.SIGTERM:
            raise
        raise StopSignal(signal.SIGTERM) from None
    finally:
        if ours is not None:
            signal.signal(signal.SIGTERM, ours)
