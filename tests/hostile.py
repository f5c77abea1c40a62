"""Seals files anew after a test has changed them: what a stranger sends has valid checksums."""

import hashlib
import json
from pathlib import Path

import numpy as np

from marius_oac.kernels.cpu.pages import checksum
from marius_oac.runtime.files.atomic import json_digest, sealed
from marius_oac.runtime.files.untrusted import blocked_file
from marius_oac.storage.disk.files import HEADER_BYTES


def listed(path: Path) -> dict:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def listed_in_checkpoint(path: Path) -> dict:
    return blocked_file(path.read_bytes()).model_dump()


def reseal_graph(folder: Path, **changes) -> None:
    """After files of a prepared graph have changed; `changes` are keys of `graph.json`."""
    path = folder / "graph.json"
    content = json.loads(path.read_text()) | changes
    content["files"] = {name: listed(folder / name) for name in content["files"]}
    path.write_text(json.dumps(content))


def reseal_derived(folder: Path) -> None:
    """Likewise of what follows from a graph: neighbours, sorted edges, features."""
    (path,) = folder.glob("*.json")
    content = json.loads(path.read_text())
    content.pop("sha256", None)
    path.write_bytes(sealed(content | {name: listed(folder / name) for name in content if name.endswith(".npy")}))


def reseal_checkpoint(folder: Path, change=lambda manifest: None) -> None:
    """Likewise of a checkpoint; `change` may change its manifest in place."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("sha256", None)
    there = [name for name in content["files"] if (folder / name).is_file()]
    content["files"] = {name: listed_in_checkpoint(folder / name) for name in there}
    change(content)
    # As `sealed` does it, which writes no NaN.
    path.write_text(json.dumps(content | {"sha256": json_digest(content)}, indent=1))


def reseal(path: Path, **changes) -> None:
    """Likewise of a JSON file that ends with its own checksum, such as `run.json`; `changes` are keys of it."""
    content = json.loads(path.read_text()) | changes
    content.pop("sha256", None)
    path.write_bytes(sealed(content))


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("[0-9]*"))


def reseal_pages(run: Path, table: str, page: int, change) -> None:
    """Likewise of one page of a table on disk, in a run with one page file; `change` gets its bytes, uint8, to change
    in place."""
    checkpoint, (path,) = newest_checkpoint(run), (run / "tables").glob("*.pages")
    page_bytes = json.loads((run / "tables" / "pages.json").read_text())["page_bytes"]
    slot = int(np.load(checkpoint / f"{table}.slots.npy")[page])
    content = np.memmap(path, np.uint8, "r+", HEADER_BYTES + slot * page_bytes, page_bytes)
    change(content)
    content.flush()
    checksums = np.load(checkpoint / f"{table}.checksums.npy")
    with np.errstate(over="ignore"):
        checksums[page] = checksum(content.ctypes.data, page_bytes, page)
    np.save(checkpoint / f"{table}.checksums.npy", checksums)
    reseal_checkpoint(checkpoint)
