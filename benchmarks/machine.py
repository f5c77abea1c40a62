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
    """The processor's model, as `lscpu` names it."""
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()
