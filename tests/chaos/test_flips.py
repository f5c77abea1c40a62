"""A harm is seen or does none, and no other result is passed over."""

import pytest

from tests.chaos.children import Said, run_cases
from tests.chaos.flips import HARMS, SPECIMENS, _Made

QUICK = 300


@pytest.mark.slow
def test_no_harm_to_a_file_is_passed_over(tmp_path):
    tally = run_cases("flips", 0, tmp_path, count=QUICK)
    assert not tally.faults, "\n\n".join(map(str, tally.faults))
    assert tally.cases == QUICK and tally.by_specimen.keys() == SPECIMENS.keys()
    assert 10 < tally.refused < QUICK


def test_harms_are_what_they_are_called(tmp_path):
    path, found = tmp_path / "file", {}
    for name, harm in HARMS.items():
        path.write_bytes(b"abcde")
        harm(path)
        found[name] = path.read_bytes() if path.exists() else None
    assert found == {"first byte": b"`bcde", "middle byte": b"abbde", "last byte": b"abcdd", "cut by one": b"abcd",
                     "emptied": b"", "removed": None}  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "code", "out", "err", "wrong"),
    [
        ("eval", 0, ("mrr 1", "seconds 5"), (), None),
        ("eval", 0, ("mrr 2", "seconds 4"), (), "other results"),
        ("eval", 2, (), ("marius-oac: HERE/held/run/manifest.json: is damaged",), None),
        ("eval", 2, (), ("marius-oac: something is damaged",), "is not named"),
        ("verify", 0, ("mrr 1",), (), "has found nothing"),
    ],
)
def test_what_goes_wrong_is_seen(tmp_path, argv, code, out, err, wrong):
    made = object.__new__(_Made)
    made.here, made.held = tmp_path, tmp_path / "held"
    path = made.held / "run" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    made._whole = {(argv,): made._result((argv,), Said((argv,), 0, ("mrr 1", "seconds 4"), ()))}
    said = Said((argv,), code, out, tuple(line.replace("HERE", str(tmp_path)) for line in err))
    found = made._fault(path.relative_to(tmp_path), (argv,), said, {})
    assert found is None if wrong is None else wrong in found
