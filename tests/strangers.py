"""A folder of a stranger's: what lies there for libraries to find, and how it is seen what a program opens there."""

import os
import pickle
import sys
from pathlib import Path

import numba

from marius_oac.kernels import ahead
from marius_oac.kernels.signatures import attribute

AUDIT = """
import os, sys

def watch():
    folder, log = os.environ["AUDITED"], os.open(os.environ["AUDIT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def look(event, arguments):
        if event not in ("open", "ctypes.dlopen"):
            return
        path = arguments[0]
        if isinstance(path, (str, bytes)):
            path = os.path.abspath(os.fsdecode(path))
            if path.startswith(folder + os.sep):
                os.write(log, (path[len(folder) + 1:] + "\\n").encode())

    sys.addaudithook(look)

if "AUDITED" in os.environ:
    watch()
"""
"""A `sitecustomize` that notes which files of a folder are opened, by Python or to be linked."""

FIRES = "import os\nopen(os.environ['FIRED'], 'a').write(__name__ + '\\n')\nraise SystemExit(9)\n"
SETTINGS = {
    "matplotlibrc": "text.usetex: True\ntext.latex.preamble: \\input{stranger}\n",
    ".env": "MLFLOW_TRACKING_URI=http://127.0.0.1:9\nNUMBA_CACHE_DIR=kernels\n",
    ".duckdbrc": ".shell touch fired\n", ".netrc": "machine example.com login a password b\n",
    "pyproject.toml": "[tool.marius_oac]\n", "setup.cfg": "[metadata]\n", "pytest.ini": "[pytest]\n",
    "mlruns/meta.yaml": "name: x\n", "optuna.yaml": "x: 1\n", "ray.yaml": "x: 1\n", "env.yaml": "x: 1\n",
    ".fsspec.json": "{}", "fsspec/conf.json": "{}", ".config/fsspec/conf.json": "{}", "pip.conf": "[global]\n",
    "evil-1.dist-info/METADATA": "Name: evil\nVersion: 1\n", "pyvenv.cfg": "home = .\n",
    "evil-1.dist-info/entry_points.txt": "[pydantic]\nevil = evil\n[numba_extensions]\ninit = evil:f\n",
    "evil.pth": "import evil\n", "python311._pth": ".\nimport site\n", "style/x.mplstyle": "text.usetex: True\n",
    ".torchinductor/x.py": "1/0\n", ".triton/cache/x/launcher.so": "x", "torch_extensions/x.so": "x",
}  # fmt: skip
LIBRARIES = (
    "numpy", "yaml", "torch/__init__", "numba/__init__", "llvmlite/__init__", "triton/__init__", "duckdb/__init__",
    "pyarrow/__init__", "pydantic/__init__", "matplotlib/__init__", "optuna/__init__", "rich/__init__", "tqdm/__init__",
    "fsspec/__init__", "mlflow/__init__", "tensorboard/__init__", "ray/__init__", "jinja2/__init__", "zmq/__init__",
    "safetensors/__init__", "psutil/__init__", "xxhash", "threadpoolctl", "aiofiles/__init__", "evil",
    "sitecustomize", "usercustomize", "cuda", "typing", "argparse", "json/__init__", "pathlib", "subprocess", "socket",
    "logging/__init__", "dataclasses", "multiprocessing/__init__", "hashlib", "random", "decimal", "setproctitle",
)  # fmt: skip
AT_THE_DOOR = ("contextlib", "warnings", "__future__", "marius_oac/__init__", "marius_oac/__main__")
"""What `python -m` imports from the present folder before the package has a say; without `-m` or with `-P` nothing."""


class Trap:
    """Makes a pickle that, when it is loaded, leaves a mark."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"echo unpickled >> {self.mark}",)


def lay(folder: Path, mark: Path, names=LIBRARIES) -> set[str]:
    """Lays all traps in a folder; returns their paths in it. One that springs adds a line to the file `mark`."""
    before = {path for path in folder.rglob("*") if path.is_file()}
    for name, text in SETTINGS.items():
        write(folder / name, text)
    for name in names:
        write(folder / f"{name}.py", FIRES)
    lay_for_numba(folder, mark)
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path not in before}


def lay_for_numba(folder: Path, mark: Path) -> None:
    """Settings that name a cache, and there an index for each kernel, whose pickle leaves a mark."""
    (folder / ".numba_config.yaml").write_text("cache_dir: kernels\nopt: '1'\nchrome_trace: trace.json\n")
    for line in ahead.record():
        name = line.call.partition("(")[0]
        if ".gpu." in name:
            continue
        cache = attribute(name)._cache
        source = Path(cache._impl.locator._py_file)
        below = cache._impl.locator.get_suitable_cache_subpath(str(source))
        index = folder / "kernels" / below / cache._cache_file._index_name
        write(index, pickle.dumps(numba.__version__) + pickle.dumps((Trap(mark), {})))


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def audited(folder: Path, beside: Path) -> dict[str, str]:
    """The variables of a program, with all that it starts, of which is noted what it opens in the folder.

    Args:
        beside: a folder for that; `opened` there has a line for each file that was opened.
    """
    write(beside / "hooks" / "sitecustomize.py", AUDIT)
    homes = {name: str(beside / "home") for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "MPLCONFIGDIR")}
    places = {"AUDITED": str(folder), "AUDIT_LOG": str(beside / "opened"), "FIRED": str(beside / "fired")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PYTHON"))}
    return {**kept, **homes, **places, "PYTHONPATH": str(beside / "hooks"), "MLFLOW_TRACKING_URI": ""}


def lines(path: Path) -> set[str]:
    return set(path.read_text().splitlines()) if path.exists() else set()


def programs() -> dict[str, list[str]]:
    """How a command is called, by name."""
    return {
        "marius-oac": [str(Path(sys.executable).with_name("marius-oac"))],
        "python -m": [sys.executable, "-m", "marius_oac"],
    }
