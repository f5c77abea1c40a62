"""What prints the layers of the package knows a circle from a tower."""

from tests.layers import arrows, circles, floors, told, upwards

TOWER = {"roof": {"wall", "cellar"}, "wall": {"cellar"}, "cellar": set(), "shed": set()}
CIRCLE = {"roof": {"left"}, "left": {"right", "cellar"}, "right": {"left"}, "cellar": set()}


def test_floors_and_circles():
    assert circles(TOWER) == [] and floors(TOWER) == {"roof": 2, "wall": 1, "cellar": 0, "shed": 0}
    assert circles(CIRCLE) == [{"left", "right"}]
    assert floors(CIRCLE) == {"roof": 2, "left": 1, "right": 1, "cellar": 0}


def test_an_arrow_upwards_is_told():
    assert upwards({"models": {"errors", "kernels"}, "kernels": {"runtime", "config"}, "config": {"nodes"}}) == [
        ("config", "nodes"), ("kernels", "config")
    ]  # fmt: skip


def test_arrows_are_those_of_the_package():
    root, storage = arrows(), arrows("storage")
    assert {"storage", "models"} <= root["pipeline"] and "pipeline" not in root["storage"]
    assert "contract" in storage["memory"] and "memory" not in storage["contract"]
    assert told("storage").startswith(f"storage: {len(storage)} rooms on ") and circles(storage) == []
