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
    assert not re.search(r"TemporaryDirectory\((?!dir=)", text), "see files/scratch.py"
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


FILES = [path for folder in ("marius_oac", "tests", "benchmarks", "docs", "examples")
         for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml", ".ipynb", ".j2")]  # fmt: skip
FILES += [*ROOT.glob("*.md"), *ROOT.glob("*.cfg"), *ROOT.glob("*.toml"), *ROOT.glob("*.yml"), *ROOT.glob("*.cff")]
FILES += [ROOT / name for name in ("Makefile", "Containerfile", "setup.py", ".github/workflows/tests.yml")]
OF_A_REGISTRY = re.compile(r"(?<![/\w])marius[-_]oac\[|\binstall (?:[^\n]*[ '\"])?marius[-_]oac\b(?!/)", re.ASCII)
"""The package by its name alone, as an installer would look for it on a registry."""


def test_nobody_is_told_to_install_the_package_by_its_name():
    """It is on no registry: whoever takes the name there would run code on the machines of our users."""
    for told in ("pip install 'marius-oac[report]'", "pip install -U marius_oac", "uv pip install marius-oac==1",
                 'python -m pip install "marius_oac"', "an image with marius-oac[ray]"):  # fmt: skip
        assert OF_A_REGISTRY.search(told), told
    for told in ("pip install '/path/to/marius_oac[ray]'", "pip install ./marius_oac-0.1-py3-none-any.whl",
                 "pip install /path/to/marius_oac", "pip install '.[ray]'"):  # fmt: skip
        assert not OF_A_REGISTRY.search(told), told
    found = [path for path in FILES if path != Path(__file__) and OF_A_REGISTRY.search(path.read_text("utf-8"))]
    assert found == []


def test_programs_of_python_are_started_without_the_present_folder():
    """`python -m` would import from there first."""
    for path in SOURCES:
        for node in ast.walk(syntax(path)):
            words = [getattr(each, "value", None) for each in getattr(node, "elts", [])]
            if "-m" in words and "torch.distributed.run" not in words:
                assert words[words.index("-m") - 1] == "-P", f"{path}:{node.lineno}"


def test_the_project_speaks_of_itself_alone():
    for path in FILES:
        if path != Path(__file__):
            found = re.search(r"/work/|\.\./shared|pypi\.org", path.read_text("utf-8"))
            assert not found, f"{path}: {found}"
