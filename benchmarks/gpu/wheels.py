"""Fetches the wheels that a machine with torch alone still needs, and packs them closer, as little may be sent there.

    python -m benchmarks.gpu.wheels --out build/gpu-wheels              # benchmarks/gpu/requirements.txt
    python -m benchmarks.gpu.wheels --out build/gpu-numba --requirements benchmarks/gpu/requirements-numba.txt

Wheels of Python 3.12 on x86-64 Linux. They are packed again by LZMA, which pip unpacks as well; pyarrow leaves behind
what nothing here imports (Flight, S3, headers, tests).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_17", "manylinux2014", "manylinux_2_12",
             "manylinux2010", "manylinux1")  # fmt: skip
LEFT_OUT = re.compile(
    r"pyarrow/(include|tests|src)/|pyarrow/.*\.(pyx|pxd|pxi|pyi|cc|h)$"
    r"|pyarrow/(lib|_)?(arrow_)?(python_)?(flight|s3fs|s3|gcsfs|azurefs|hdfs|orc|dataset_orc|pyarrow_cpp_tests)\b.*\.so"
    r"|pyarrow/(libarrow_python_(flight|parquet_encryption)|_(dataset_)?parquet_encryption).*"
    r"|pyarrow/libarrow_python\.so(\.\d+\.\d+\.\d+)?$"  # the same as libarrow_python.so.2600
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the wheels; other versions of them are removed"
    )
    parser.add_argument("--requirements", type=Path, default=HERE / "requirements.txt")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
                *("--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"),
                *(f"--platform={platform}_x86_64" for platform in PLATFORMS),
                *("-d", folder, "-r", str(options.requirements)),
            ],
            check=True,
        )
        wheels = [put(pack(wheel), options.out) for wheel in sorted(Path(folder).glob("*.whl"))]
    total = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{options.out}: {len(wheels)} wheels, {total / (1 << 20):.1f} MiB")


def put(wheel: Path, folder: Path) -> Path:
    """Moves the wheel there, in the place of other versions: two of one project stop an installation."""
    for other in folder.glob(f"{wheel.name.partition('-')[0]}-*.whl"):
        other.unlink()
    return wheel.rename(folder / wheel.name)


def pack(wheel: Path) -> Path:
    """Writes the wheel again, without what is left out, by LZMA."""
    packed = wheel.with_suffix(".packed")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as target:
        for entry in kept(source):
            content = source.read(entry)
            entry.compress_type = zipfile.ZIP_LZMA
            target.writestr(entry, content)
    return packed.replace(wheel)


def kept(source: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    for entry in source.infolist():
        if not LEFT_OUT.match(entry.filename):
            yield entry


if __name__ == "__main__":
    main()
