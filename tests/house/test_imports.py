"""Who may import whom (`tests.layers.LAYERS`), and what a newcomer's patience needs: config and errors load quickly."""

import ast
import subprocess
import sys

import marius_oac
from marius_oac.training import local as training
from tests.house.test_house import broken
from tests.layers import LAYERS, PACKAGE, WINGS, arrows, circles, folders, imported, syntax, upwards

HEAVY = {"torch", "numba", "dgl"}
FORBIDDEN = dict.fromkeys(("errors", "types", "batches", "runtime", "config", "cli"), HEAVY) | {
    "kernels": {"torch", "dgl"},
    "storage": {"torch", "dgl"},
    "data": {"torch", "dgl"},
    "prepare": {"torch", "dgl"},
}
"""Libraries that a room never imports; all others import anything but dgl."""
FLOOR = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
PROCESSES = ("torch", "processes")
DGL = PACKAGE / "data" / "dgl", PACKAGE / "prepare" / "dgl"


def imports(path):
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def test_arrows_point_downwards():
    root = arrows()
    assert {room for line in LAYERS for room in line} == {*root, "__init__", "__main__"}
    assert upwards(root) == []


def test_the_core_imports_no_wing_and_no_wing_another_one():
    crossing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        room = place.parts[0]
        if FLOOR[room.removesuffix(".py")] <= FLOOR["training"] or room in WINGS:
            into = {name.partition(".")[0] for name in imported(path)} & {*WINGS} - {room}
            crossing += [f"{place}: {wing}" for wing in into if not (wing == "nodes" and place.parts[:2] == PROCESSES)]
    assert crossing == []


def test_no_rooms_import_each_other():
    assert {folder: found for folder in folders() if (found := circles(arrows(folder)))} == {}


def test_libraries_stay_in_their_rooms():
    assert broken(keeps_its_libraries) == []


def keeps_its_libraries(path):
    room = path.relative_to(PACKAGE).with_suffix("").parts[0]
    forbidden = set() if any(map(path.is_relative_to, DGL)) else FORBIDDEN.get(room, {"dgl"})
    for module in imports(path):
        assert module.partition(".")[0] not in forbidden, f"imports {module}"


def test_the_root_holds_few_rooms():
    inside = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert sum(path.is_dir() for path in inside) <= 17 and sum(path.is_file() for path in inside) <= 8
    assert not (PACKAGE / "train").exists(), "it would hide marius_oac.train"


def test_the_command_line_starts_without_torch_and_numba():
    code = (
        "import sys, marius_oac.cli.commands, marius_oac.config.link_prediction\n"
        "print([m for m in ('torch', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_users_import_is_listed():
    assert marius_oac.train in vars(training).values()
    doors = {name: getattr(marius_oac, name) for name in ("dgl", "ray", "testing", "torch")}
    assert {*dir(marius_oac)} == {*marius_oac.__all__, *doors, "__version__"}
    assert doors["torch"].__name__ == "marius_oac.torch" and callable(doors["ray"].train)
