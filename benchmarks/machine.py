"""The machine and the date in words: what stands beside every figure."""

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import psutil


def machine() -> str:
    """One line: cores that may be used, memory, version of torch, load of the last minute, date."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{len(os.sched_getaffinity(0))} cores ({processor()}), {memory:.0f} GiB, torch {version('torch')}, "
        f"load {os.getloadavg()[0]:.1f}, {datetime.date.today()}"
    )


def processor() -> str:
    """As `lscpu` names it, with family and model, since a virtual machine's name is often no more than the maker's."""
    text = Path("/proc/cpuinfo").read_text()
    said = dict(re.findall(r"^(cpu family|model|model name)\s*: (.+)$", text, re.MULTILINE))
    if "model name" not in said:
        return platform.machine()
    return f"{said['model name']}, family {said.get('cpu family')}, model {said.get('model')}"
