"""House rules that a script can hold."""

import ast
import re
from pathlib import Path

from tests.layers import syntax

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "marius_oac").rglob("*.py"))
SPEAKING = {"console.py"}


def broken(rule):
    """What the rule says of each source that does not keep it; `rule(path)` fails there."""
    found = []
    for path in SOURCES:
        try:
            rule(path)
        except AssertionError as error:
            found.append(f"{path.relative_to(ROOT)}: {error}")
    return found


def test_rooms_are_small_and_clean():
    assert broken(small_and_clean) == []


def test_files_that_are_mapped_to_be_written_have_their_place_on_the_disk():
    """Where they have not, a full disk is the end of the process (SIGBUS), not an error with a line. What
    `npy.mapped_again` maps was made by `mapped_npy`."""
    assert broken(mapped_with_their_place) == []


ONE_PLACE = {
    r"(?<!triton\.)\b(n?jit|numba\.vectorize)\(|@n?jit\b": "kernels/cpu/jit.py",
    r"\btriton\.jit\b": "kernels/gpu/jit.py",
    r"\bnp\.save[z(]|write_array_header|open_memmap": "runtime/files/npy.py",
    r"\btqdm\(": "runtime/progress.py",
    r"\bos\._exit\(": "runtime/command.py",
}
"""What one module alone does for all others: sets up the compiler, writes .npy files, makes bars, ends
a process at once."""


def test_what_one_module_does_for_all_is_done_there_alone():
    for pattern, place in ONE_PLACE.items():
        found = [path for path in SOURCES if re.search(pattern, path.read_text("utf-8"))]
        assert found == [ROOT / "marius_oac" / place], pattern


def small_and_clean(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 400, "split it"
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK|raise NotImplementedError)\b", text)
    for node in ast.walk(syntax(path)):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        assert not name.endswith(("pickle.load", "pickle.loads"))
        assert not name.endswith("time.sleep") or ast.unparse(node) == "time.sleep(0)", "sleeps synchronise nothing"
        if path.name not in SPEAKING:
            assert name != "print", f"line {node.lineno}: see console.py"
        if name.endswith("Thread"):
            assert "daemon" not in ast.unparse(node)
        if name.endswith(("np.load", "torch.load")):
            assert "allow_pickle=False" in ast.unparse(node) or "weights_only=True" in ast.unparse(node)
        if isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr") and path.name not in SPEAKING:
            assert ast.unparse(node) not in ("sys.stdout", "sys.stderr"), f"line {node.lineno}: see console.py"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.name != "__del__"
            assert node.end_lineno - node.lineno <= 70, f"{node.name} is too long"


def mapped_with_their_place(path):
    for node in syntax(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = ast.unparse(node)
            writes = "MAP_SHARED" in text or re.search(r"(mmap_)?mode='[rw]\+'", text) and "np." in text
            assert not writes or "os.posix_fallocate" in text or node.name == "mapped_again", f"line {node.lineno}"


def test_the_project_speaks_of_itself_alone():
    files = [path for folder in ("marius_oac", "tests", "benchmarks", "docs", "examples")
             for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml")]  # fmt: skip
    for path in [*files, ROOT / "README.md", ROOT / "Makefile"]:
        if path != Path(__file__):
            found = re.search(r"/work/|\.\./shared|pypi\.org", path.read_text("utf-8"))
            assert not found, f"{path}: {found}"
