"""Who may import whom (docs/design.md), and what a newcomer's patience needs: config and errors load quickly."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.test_house import broken

PACKAGE = Path(__file__).parents[1] / "marius_oac"
SHARED = {
    "aligned",
    "blas",
    "command",
    "config",
    "config_base",
    "config_ctr",
    "config_sections",
    "config_errors",
    "config_dense",
    "config_nodes",
    "config_cluster",
    "config_encoder",
    "console",
    "types",
    "errors",
    "trust",
    "untrusted",
    "untrusted_npy",
    "prefetch",
    "kept_code",
    "__init__",
}
ROOMS = {
    "runtime": set(),
    "storage": {"runtime"},
    "data": set(),
    "models": set(),
    "pipeline": {"storage", "runtime", "models", "data"},
    "nodes": {"storage", "runtime", "pipeline", "models", "data"},
}
HEAVY = {"torch", "numba", "dgl"}
LIGHT = (
    "aligned",
    "blas",
    "command",
    "config",
    "config_base",
    "config_ctr",
    "config_sections",
    "config_errors",
    "config_dense",
    "config_nodes",
    "config_cluster",
    "config_encoder",
    "console",
    "types",
    "errors",
    "trust",
    "untrusted",
    "untrusted_npy",
    "cli",
    "runtime",
)
FORBIDDEN = dict.fromkeys(LIGHT, HEAVY) | {
    "storage": {"torch", "dgl"},
    "data": {"torch"},
    "models": {"dgl"},
    "pipeline": {"dgl"},
    "nodes": {"dgl"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "marius_oac")


def test_imports_keep_to_the_rooms():
    assert broken(keeps_to_its_room) == []


def keeps_to_its_room(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    room = parts[0]
    for module in imports(path):
        top, *inside = module.split(".")
        assert top not in FORBIDDEN.get(room, ()), f"{path} imports {module}"
        if top != "marius_oac" or not inside:
            continue
        target = inside[0]
        if target in SHARED or target == "__version__":
            continue
        if room in ROOMS and len(parts) > 1:
            assert target == room or target in ROOMS[room] or target in ("progress", "files"), (
                f"{path} imports {module}"
            )
        if room != "__main__":
            assert target != "cli", f"{path} imports {module}"


def test_the_command_line_starts_without_torch_and_numba():
    code = "import sys, marius_oac.cli, marius_oac.config; print([m for m in ('torch', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
