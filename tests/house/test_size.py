"""A folder that grows above its ceiling is told."""

from tests.size import above, code_lines, sizes

MODULE = b'''"""A module."""

import os  # a comment


class Empty:
    """Has
    no code."""

    names = ("one",
             """two
             lines""")
'''


def test_docstrings_comments_and_blank_lines_are_no_code():
    assert code_lines(MODULE) == 5


def test_each_folder_counts_by_itself(tmp_path):
    for name in ("marius_oac/torch.py", "marius_oac/data/logs/a.py", "marius_oac/data/b.py", "tests/deep/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(MODULE)
    assert sizes(tmp_path) == {"marius_oac": 5, "marius_oac/data": 10, "tests": 5}


def test_a_folder_above_its_ceiling_and_a_new_one_are_told():
    lines = list(above({"old": 7, "new": 2, "small": 3}, {"old": 5, "small": 3, "gone": 1}))
    assert lines == [
        "new has 2 lines of code, 2 more than tests/size.txt allows",
        "old has 7 lines of code, 2 more than tests/size.txt allows",
    ]
