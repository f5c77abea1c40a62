"""All cases of the battery."""

from importlib import import_module

from tests.battery.cases import Case

_QUICK = ("settings", "edges", "logs", "runs", "classes", "nodes")
_PROCESSES = ("processes",)


def _cases(*names: str) -> list[Case]:
    return [case for name in names for case in import_module(f"tests.battery.table_{name}").CASES]


QUICK, PROCESSES = _cases(*_QUICK), _cases(*_PROCESSES)
