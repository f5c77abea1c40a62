"""Makes the runs of an earlier version: `python -m tests.before.make --tree CHECKOUT` trains with the package there.

`home` beside this file is the folder of a user of that version: configs as they wrote them, a network of their own,
nodes.yaml files. `home.tar.xz` has all that, data and logs, the runs, and made.json, which says what the bits of the
runs depend on beside the package. They are trained in a folder that is gone afterwards: a project that was moved.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HOME = Path(__file__).resolve().parent / "home"
MADE = HOME.with_suffix(".tar.xz")
WORK, STATE = Path("/tmp/marius_oac-before"), Path("/tmp/marius_oac-before-state")
ALONE = ("memory", "disk", "clicks", "own", "classes")
NODES = ("links_nodes", "clicks_nodes", "easgd_nodes", "dealt_nodes")
PAGE = 4096
LIBRARIES = ("numpy", "numba", "llvmlite", "torch")
PROCESSOR = ("model name", "flags")
SWITCHES = ("NUMBA_DISABLE_JIT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "ATEN_CPU_CAPABILITY")
_STOPPED = """
import marius_oac
def probe(stage, batch):
    if (stage, batch) == ("compute", 17):
        raise KeyboardInterrupt
try:
    marius_oac.train(marius_oac.Config.load("clicks.yaml"), "runs/stopped", probe=probe)
except marius_oac.errors.Interrupted:
    pass
"""


def made_with() -> dict[str, str]:
    """What bits depend on, beside this package and its configuration."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = (next((line.partition(": ")[2] for line in lines if line.startswith(key)), "") for key in PROCESSOR)
    switches = {name: os.environ[name] for name in SWITCHES if name in os.environ}
    return {"processor": "; ".join(told), **{name: version(name) for name in LIBRARIES}, **switches}


def write_data(home: Path) -> None:
    """A graph of 60 nodes, a label for each, and logs of 100 examples."""
    draw = np.random.default_rng(0)
    for folder in ("data", "logs"):
        (home / folder).mkdir()
    ends, relations = (draw.zipf(1.3, (300, 2)) * np.array([7, 11])) % 60, draw.integers(3, size=300)
    edges = [f"e{head}\tr{relation}\te{tail}" for (head, tail), relation in zip(ends, relations, strict=True)]
    (home / "data" / "edges.tsv").write_text("\n".join(edges) + "\n")
    split = ("train", "train", "valid", "test")
    labels = [f"e{node}\tclass {node % 3}\t{split[node % 4]}" for node in sorted(set(ends.ravel()))]
    (home / "data" / "labels.tsv").write_text("\n".join(["name\tlabel\tsplit", *labels]) + "\n")
    for name in ("day_0", "day_1", "test"):
        _write_clicks(home / "logs" / f"{name}.parquet", draw)
    for first, name in enumerate(("log", "more")):
        rows = [
            f"{('no', 'yes')[n % 3 == 0]},{'' if n % 9 == 4 else n * 37 % 50},town {n * n % 7},{n * n % 11:x}"
            for n in range(100 * first, 100 * first + 100)
        ]
        (home / "logs" / f"{name}.csv").write_text("\n".join(["answer,hours,town,code", *rows]) + "\n")


def _write_clicks(path: Path, draw: np.random.Generator, rows: int = 100) -> None:
    user, item = draw.zipf(1.3, (2, rows)) % 30
    lists = pa.list_(pa.int64())
    columns = {
        "click": pa.array((user + item + draw.integers(4, size=rows)) % 5 < 2, pa.int8()),
        "age": pa.array(draw.integers(16, 90, size=rows)),
        "price": pa.array(np.round(np.exp(draw.normal(2, 1, size=rows)), 2)),
        "user": user,
        "item": item,
        "tags": pa.array([draw.integers(9, size=size).tolist() for size in draw.integers(4, size=rows)], lists),
        "seen": pa.array([draw.integers(30, size=size).tolist() for size in draw.integers(4, size=rows)], lists),
    }
    pq.write_table(pa.table(columns), path)


def _clear_pages(run: Path) -> None:
    """Pages that no checkpoint refers to become zeros: what nobody reads needs no room."""
    used = np.concatenate([np.load(path) for path in run.glob("checkpoints/*/*.slots.npy")])
    for path in run.glob("tables/*.pages"):
        header, *pages = np.fromfile(path, np.uint8).reshape(-1, PAGE)
        kept = [page if slot in used else np.zeros_like(page) for slot, page in enumerate(pages)]
        np.concatenate([header, *kept]).tofile(path)


def _pack() -> None:
    def cleared(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name.endswith(".lock") or Path(member.name).name.startswith("neighbors-"):
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(MADE, "w:xz") as archive:
        archive.add(WORK, ".", filter=cleared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=HOME.parents[2], help="the version's checkout (default: this one)")
    tree = parser.parse_args().tree.resolve()
    environment = os.environ | {"PYTHONPATH": str(tree), "XDG_STATE_HOME": str(STATE)}

    def python(*words: str) -> None:
        subprocess.run([sys.executable, "-P", *words], cwd=WORK, env=environment, check=True)

    shutil.copytree(HOME, WORK)
    try:
        python("-c", f"import marius_oac; assert marius_oac.__file__.startswith({str(tree)!r})")
        write_data(WORK)
        python("-m", "marius_oac", "prepare", "data/edges.tsv", "--out", "data/graph", "--unseen", "keep")
        for name in ALONE:
            python("-m", "marius_oac", "train", f"{name}.yaml", "--out", f"runs/{name}")
        for name in NODES:
            python("-m", "marius_oac", "train", f"{name}.yaml", "--out", f"runs/{name}", "--local-nodes", "2")
        python("-c", _STOPPED)
        _clear_pages(WORK / "runs" / "disk")
        (WORK / "made.json").write_text(json.dumps(made_with(), indent=1) + "\n")
        _pack()
    finally:
        shutil.rmtree(WORK)
        shutil.rmtree(STATE, ignore_errors=True)


if __name__ == "__main__":
    main()
