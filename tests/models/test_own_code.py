import os
from pathlib import Path

import pytest

from marius_oac.config.parts import own_file
from marius_oac.errors import ConfigError
from marius_oac.models.compute.user_code import blaming, blaming_frames, load_own, own_files


def test_names_of_own_code():
    assert [own_file(name) for name in ("dlrm", "a.py", "a.txt:b", ":b")] == [None] * 4
    path, name = own_file("C:/folder/a.py:b")
    assert (str(path), name) == ("C:/folder/a.py", "b")


def test_the_texts_that_a_run_keeps(tmp_path):
    (tmp_path / "other").mkdir()
    for name in ("a", "b", "other/a"):
        (tmp_path / f"{name}.py").write_text(f"# {name} é\n", "utf-8")
    a, b, other = (f"{tmp_path}/{name}.py:make" for name in ("a", "b", "other/a"))
    assert own_files(("a key", each) for each in (a, b, a)) == {"a.py": "# a é\n", "b.py": "# b é\n"}
    with pytest.raises(ConfigError, match=r"^a key: a run keeps .*other/a.py and .*/a.py under one name"):
        own_files([("a key", a), ("a key", other)])
    with pytest.raises(ConfigError, match=r"there is no file .*/none.py"):
        own_files([("a key", f"{tmp_path}/none.py:make")])
    (tmp_path / "b.py").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"b.py can't be read: .*utf-8"):
        own_files([("a key", b)])


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("where", ["absolute", "relative", "link"])
def test_a_mistake_in_own_code_has_a_line(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    os.symlink("there", "link")
    folder = {"absolute": tmp_path / "there", "relative": Path("there"), "link": Path("link")}[where]
    path = folder / "own.py"
    path.write_text("def make():\n    return int(\n        'x')\n\n\nother = make\n")
    make = load_own(path, "make", "a key")
    with pytest.raises(ConfigError) as caught, blaming(path, "a key"):
        make()
    assert str(caught.value) == f"a key: {path}:2: ValueError: invalid literal for int() with base 10: 'x'"
    for text, said in (
        ("\nmake = 1 / 0\n", "2: ZeroDivisionError: division by zero"),
        ("\n\ndef f(:\n", "3: invalid "),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_own(path, "make", "a key")
        assert str(caught.value).startswith(f"a key: {path}:{said}")


@pytest.mark.usefixtures("all_code_is_known")
def test_of_several_files_the_innermost_line_is_blamed_and_others_errors_stay(tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("def call(function):\n    return function()\n")
    second.write_text("\n\ndef fail():\n    return 1 / 0\n")
    call, fail = load_own(first, "call", "a key"), load_own(second, "fail", "a key")
    with pytest.raises(ConfigError) as caught, blaming_frames([first, second], "a key"):
        call(fail)
    assert str(caught.value) == f"a key: {second}:4: ZeroDivisionError: division by zero"
    with pytest.raises(ConfigError) as caught, blaming_frames([second, first], "a key"):
        call(lambda: int("x"))
    assert str(caught.value).startswith(f"a key: {first}:2: ValueError: ")
    with pytest.raises(ValueError), blaming_frames([first, second], "a key"):
        int("x")
