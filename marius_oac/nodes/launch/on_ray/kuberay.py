"""The manifest of a run as a job of KubeRay, the operator of Ray on Kubernetes: a RayJob and its ConfigMap.

The job's cluster is made for the run and removed after it. Its head has no trainer. Ray asks every connection for a
token that KubeRay makes (`authOptions`, KubeRay 1.5.1 or newer).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from marius_oac.errors import InputError

RAY = "2.60.0"
_CONFIG = "/etc/marius-oac"
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")  # KubeRay appends to a job's name, which has 63 at most
_QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")
_STOP_SECONDS = 120  # for a checkpoint
_OBJECTS = 80 << 20  # bytes of Ray's object store on each node: no rows go through it


@dataclass(frozen=True)
class Job:
    """A run on Kubernetes.

    Attributes:
        name: of the job.
        image: of all containers; it has this package with its extra `ray`.
        claim: a PersistentVolumeClaim that all pods can mount and write (ReadWriteMany), with the data.
        mount: where the pods have it.
        out: the run's folder, below `mount`.
        config: text of the config; None: the run is there, and goes on.
        trainers: smallest and largest number of trainers.
        words: further words of the command.
        cpus, memory: of each trainer; memory as Kubernetes writes it, such as 16Gi.
        gpu: each trainer has one.
        ray: version of Ray in the image.
    """

    name: str
    image: str
    claim: str
    mount: str
    out: str
    config: str | None
    trainers: tuple[int, int]
    words: tuple[str, ...] = ()
    cpus: int = 4
    memory: str = "16Gi"
    gpu: bool = False
    ray: str = RAY

    def check(self) -> None:
        """Raises InputError for what Kubernetes or a trainer would refuse."""
        for option, value in (("--name", self.name), ("--claim", self.claim)):
            if not _LABEL.fullmatch(value):
                raise InputError(f"must be a-z, 0-9 and -, of at most 42 characters, not '{value}'", option)
        if not self.image or not self.image.isprintable() or " " in self.image:
            raise InputError(f"must be an image's name, not '{self.image}'", "--image")
        if not _QUANTITY.fullmatch(self.memory):
            raise InputError(f"must be a quantity such as 16Gi, not '{self.memory}'", "--memory")
        if self.cpus < 1:
            raise InputError(f"must be at least 1, not {self.cpus}", "--cpus")
        mount, out = PurePosixPath(self.mount), PurePosixPath(self.out)
        if not mount.is_absolute() or str(mount) == "/" or ".." in mount.parts:
            raise InputError(f"must be an absolute path, not '{self.mount}'", "--mount")
        if mount not in out.parents or ".." in out.parts:
            raise InputError(f"must be a folder below {mount}, which all pods share, not '{out}'", "--out")

    @property
    def command(self) -> str:
        """What the job runs."""
        least, most = self.trainers
        number = str(most) if least == most else f"{least}..{most}"
        run = ["resume", self.out] if self.config is None else ["train", f"{_CONFIG}/config.yaml", "--out", self.out]
        return shlex.join(["marius-oac", *run, "--on", "ray", "--trainers", number, *self.words])


def manifest(job: Job) -> str:
    """Returns the YAML documents, for `kubectl apply -f -`.

    Raises:
        InputError: see `Job.check`.
    """
    job.check()
    documents = [_job(job)]
    if job.config is not None:
        documents.insert(0, _described("v1", "ConfigMap", job.name, data={"config.yaml": job.config}))
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and what occurs twice in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _described(version: str, kind: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}


def _job(job: Job) -> dict[str, Any]:
    least, most = job.trainers
    started = {"object-store-memory": str(_OBJECTS)}
    workers = {
        "groupName": "trainers",
        "replicas": most,
        "minReplicas": least,
        "maxReplicas": most,
        "rayStartParams": started,
        "template": _pod(job, "trainer", job.cpus, job.memory, job.gpu),
    }
    head = {"rayStartParams": {"num-cpus": "0"} | started, "template": _pod(job, "head", 1, "4Gi", False)}
    spec = {
        "entrypoint": job.command,
        "runtimeEnvYAML": yaml.safe_dump({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS)}}),
        "shutdownAfterJobFinishes": True,
        "backoffLimit": 0,  # the run starts its trainers again by itself
        "rayClusterSpec": {
            "rayVersion": job.ray,
            "authOptions": {"mode": "token"},
            "headGroupSpec": head,
            "workerGroupSpecs": [workers],
        },
    }
    return _described("ray.io/v1", "RayJob", job.name, spec=spec)


def _pod(job: Job, name: str, cpus: int, memory: str, gpu: bool) -> dict[str, Any]:
    share: dict[str, Any] = {"cpu": str(cpus), "memory": memory} | ({"nvidia.com/gpu": "1"} if gpu else {})
    mounts = [{"name": "data", "mountPath": job.mount}]
    volumes: list[dict[str, Any]] = [{"name": "data", "persistentVolumeClaim": {"claimName": job.claim}}]
    if job.config is not None:
        mounts.append({"name": "config", "mountPath": _CONFIG})
        volumes.append({"name": "config", "configMap": {"name": job.name}})
    container = {
        "name": name,
        "image": job.image,
        "resources": {"requests": share, "limits": share},
        "volumeMounts": mounts,
    }
    return {
        "spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": _STOP_SECONDS},
    }
