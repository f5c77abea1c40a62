"""Puts every checksum below a folder right again: what a stranger sends has valid ones."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs import identity
from marius_oac.data.layout import fingerprint
from marius_oac.errors import InputError
from marius_oac.runs.checkpoints.checkpoint import MANIFEST
from marius_oac.runs.folder.about import decisive
from marius_oac.runtime.files.atomic import json_digest, sealed
from marius_oac.runtime.files.untrusted import blocked_file

DERIVED = ("neighbors.json", "buckets.json", "features.json", "encoded.json")


def reseal_all(folder: Path) -> None:
    """From the files that others list to those that list them. What is no JSON, or lacks a key, stays as it is."""
    for path in sorted(folder.rglob(MANIFEST)):
        _change(path, _list_files)
    for name in DERIVED:
        for path in sorted(folder.rglob(name)):
            _change(path, _list_arrays)
    for path in sorted(folder.rglob("graph.json")):
        _change(path, _list_files)
    for path in sorted(folder.rglob("run.json")):
        _change(path, _describe_run)
    for name in ("log.json", "saved.json", "best.json"):
        for path in sorted(folder.rglob(name)):
            _change(path, lambda path, content: None)


def _change(path: Path, change) -> None:
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError):
        content = json.loads(path.read_text("utf-8"))
        own = content.pop("sha256", None)
        change(path, content)
        path.write_bytes(sealed(content) if own else json.dumps(content).encode())


def _listed(path: Path) -> dict:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _list_files(path: Path, content: dict) -> None:
    for name, entry in content["files"].items():
        with suppress(TypeError, AttributeError, OSError, ValueError):
            if type(entry["bytes"]) is int and entry["bytes"] >= 0:
                if "sha256" in entry:
                    entry.update(_listed(path.parent / name))
                elif "xxh3_blocks" in entry:
                    entry.update(blocked_file((path.parent / name).read_bytes()).model_dump())


def _list_arrays(path: Path, content: dict) -> None:
    for name in content:
        if name.endswith(".npy"):
            content[name] = _listed(path.parent / name)
    if "checkpoint" in content:  # what an encoder has made of all nodes, at one checkpoint
        manifest = json.loads((path.parents[2] / "checkpoints" / path.parent.name / MANIFEST).read_text())
        content["checkpoint"] = json_digest(manifest["files"])


def _describe_run(path: Path, content: dict) -> None:
    run = path.parent
    with suppress(InputError, OSError):
        config = Config.load(run / "config.yaml")
        content["config"] = decisive(config)
        graph = json.loads((Path(config.data.path) / "graph.json").read_text()) if config.task != "ctr" else None
        if graph:
            parts = identity.parted(content["data"])
            parts.pop(identity.GRAPH)
            content["data"] = identity.joined(fingerprint(graph["files"]), parts)
    for name in content.get("files", {}):
        with suppress(OSError):
            content["files"][name] = [hashlib.sha256((run / name).read_bytes()).hexdigest()]
    if content.get("result"):
        content["result"]["summary"] = hashlib.sha256((run / "summary.json").read_bytes()).hexdigest()
        content["result"]["metrics"] = _listed(run / "metrics.jsonl")
