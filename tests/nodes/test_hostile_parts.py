"""Parts of a run over nodes that somebody else has made: one line that names the file, whatever they say of rows."""

from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.errors import CheckpointError
from marius_oac.runs.checkpoints.origin import Origin
from marius_oac.runs.checkpoints.parts import PLACE, PLACEMENT, Layout
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.storage.placement import IdPlaces, Placement

RUN = "0" * 16


def parts(count=2, rows=40, shards=8):
    """What the parts of a graph's checkpoint hold, as they should."""
    placement = Placement.by_number(count, shards)
    places = IdPlaces(rows, placement)
    return [
        {PLACE: np.array([node]), PLACEMENT: placement.nodes, "rows": np.ones((places.num_rows(node), 3), np.float32)}
        for node in range(count)
    ]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """`opened(parts)`: what is read of such parts."""

    def read(arrays):
        for number, held in enumerate(arrays):
            (tmp_path / "nodes" / "2-a" / f"n{number}" / "checkpoints" / "0000000001").mkdir(parents=True)
            held["path"] = tmp_path / f"n{number}"

        def part_of(self, name, verify=True, pinned=False, as_read=False):
            held = arrays[int(self.folder.parent.name[1:])]
            named = {key: value for key, value in held.items() if key.startswith("nodes.")}
            others = dict.fromkeys(("sequence", "placement", "dense", "agreed", "trains"))
            origin = Origin(run=RUN, session="1" * 16, number=int(held["path"].name[1:]), parts=len(arrays))
            return SimpleNamespace(
                path=held["path"],
                origin=origin,
                facts=lambda: origin.model_dump() | others,
                batch_index=1,
                extra={},
                files={},
                checked=None,
                has=named.__contains__,
                arrays_of=lambda begins: named,
                array=lambda *_: held["rows"],
            )

        monkeypatch.setattr(Checkpoints, "open", part_of)
        (layout,) = Layout.all(tmp_path)
        return layout.open("0000000001", RUN).array("entities", "values")[np.arange(40)]

    return read


def test_sound_parts_are_read_as_one(opened):
    assert opened(parts()).shape == (40, 3)


SAID = {
    "no place": (lambda held: held.pop(PLACE), "place is missing or empty"),
    "a place without a number": (
        lambda held: held.update({PLACE: np.zeros(0, np.int64)}),
        "place is missing or empty",
    ),
    "a place that is no number": (
        lambda held: held.update({PLACE: np.array([np.nan])}),
        "place is missing or empty",
    ),
    "the same place twice": (lambda held: held.update({PLACE: np.array([1])}), r"those of the nodes \[1, 1\]"),
    "a place that is none": (lambda held: held.update({PLACE: np.array([7])}), r"those of the nodes \[1, 7\]"),
    "no placement": (lambda held: held.pop(PLACEMENT), "placement is missing or empty"),
    "nodes that are none": (lambda held: held.update({PLACEMENT: np.full(8, 9)}), "nodes must be 0 to 1, not 9 to 9"),
    "other rows": (lambda held: held.update(rows=held["rows"][3:]), "has not the rows that belong to each node"),
}


@pytest.mark.parametrize("what", SAID)
def test_others_are_named(opened, what):
    change, said = SAID[what]
    hostile = parts()
    change(hostile[0])
    with pytest.raises(CheckpointError, match=f"is damaged: .*{said}"):
        opened(hostile)


def test_folders_of_other_names_are_passed_over(tmp_path):
    for name in ("2-now", "1a-b", "0-x", "-1-x", "2-x.unfinished", "notes", "99999999-x"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    assert [layout.path.name for layout in Layout.all(tmp_path)] == ["2-now"]
