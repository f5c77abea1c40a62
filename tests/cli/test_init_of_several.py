"""A first configuration for edges in several files, and for logs that lie so."""

import subprocess

from marius_oac.cli.commands import main
from marius_oac.prepare.init.graph import one_to_look_at
from tests.data.written_edges import written


def test_a_configuration_for_a_folder_of_edges(tmp_path, capsys):
    """As Spark writes it, whose first part is empty. It names the folder, and is that for one file of so many bytes."""
    for number, size in enumerate((0, 30, 50)):
        written(tmp_path / "likes" / f"part-{number}.csv", "csv", [(i, i % 3, i + 1) for i in range(size)], size > 0)
    (tmp_path / "likes" / "_SUCCESS").touch()
    assert main(["init", str(tmp_path / "likes"), "--out", str(tmp_path / "c.yaml")]) == 0
    text, said = (tmp_path / "c.yaml").read_text(), capsys.readouterr().err
    assert f"marius-oac prepare {tmp_path}/likes --out data/likes" in text and "path: data/likes" in text
    assert "part-1.csv is taken for the edges of a graph" in said and "complex" in text
    assert main(["init", *map(str, sorted((tmp_path / "likes").glob("*.csv"))), "--task", "graph"]) == 0
    assert "likes/part-2.csv --out data/part-1" in capsys.readouterr().out


def test_a_configuration_for_parts_of_which_the_first_has_the_names(tmp_path, capsys):
    rows = [f"a{i % 117},b{i % 123},k{i % 3}\n" for i in range(400)]
    folder = tmp_path / "new\nline's"
    folder.mkdir()
    for number in range(4):
        lines = ["u,v,kind\n"] * (not number) + rows[100 * number : 100 * number + 100]
        (folder / f"p{number}.csv").write_text("".join(lines))
    assert main(["init", str(folder), "--task", "graph"]) == 0
    said = capsys.readouterr().out
    (command,) = (line[4:] for line in said.splitlines() if line.startswith("#   marius-oac prepare"))
    words = subprocess.run(
        ["bash", "-c", f'for word in {command}; do printf "%s\\0" "$word"; done'], stdout=-1, text=True
    )
    words = words.stdout.split("\0")[1:-1]
    assert words[:4] == ["prepare", str(folder), "--columns", "u,kind,v"]
    assert main([*words[:-1], str(tmp_path / "g")]) == 0
    assert "3 relations" in capsys.readouterr().out


def test_a_configuration_for_a_log_in_hive_s_folders(tmp_path):
    """What their names say is not needed; training takes them, too."""
    for day in (1, 2):
        path = tmp_path / f"dt={day}" / "part-0.csv"
        path.parent.mkdir()
        path.write_text("label,age,city\n" + "".join(f"{i % 2},{i % 50},c{i % 7}\n" for i in range(200)))
    files = map(str, sorted(tmp_path.glob("dt=*/*.csv")))
    assert main(["init", *files, "--task", "ctr", "--out", str(tmp_path / "c.yaml")]) == 0


def test_which_file_is_looked_at(tmp_path):
    """One of the larger ones, and of these the first."""
    sizes = {"a": 4, "b": 11, "c": 20, "d": 20}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert one_to_look_at([tmp_path / name for name in sizes]) == tmp_path / "b"
