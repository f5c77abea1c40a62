import pytest

from marius_oac.errors import ConfigError
from marius_oac.models.own_code import own_file, own_files


def test_names_of_own_code():
    assert [own_file(name) for name in ("dlrm", "a.py", "a.txt:b", ":b")] == [None] * 4
    path, name = own_file("C:/folder/a.py:b")
    assert (str(path), name) == ("C:/folder/a.py", "b")


def test_the_texts_that_a_run_keeps(tmp_path):
    (tmp_path / "other").mkdir()
    for name in ("a", "b", "other/a"):
        (tmp_path / f"{name}.py").write_text(f"# {name} é\n", "utf-8")
    a, b, other = (f"{tmp_path}/{name}.py:make" for name in ("a", "b", "other/a"))
    assert own_files([a, "sage", b, a], "a key") == {"a.py": "# a é\n", "b.py": "# b é\n"}
    with pytest.raises(ConfigError, match=r"^a key: a run keeps .*other/a.py and .*/a.py under one name"):
        own_files([a, other], "a key")
    with pytest.raises(ConfigError, match=r"there is no file .*/none.py"):
        own_files([f"{tmp_path}/none.py:make"], "a key")
    (tmp_path / "b.py").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"b.py can't be read: .*utf-8"):
        own_files([b], "a key")
