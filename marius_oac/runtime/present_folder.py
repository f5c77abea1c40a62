"""Libraries take no settings from the folder that a program is called in: it may be a run's, or anybody's.

Numba reads `.numba_config.yaml` there, when it is imported and whenever it compiles. That file may say where machine
code is kept, and what is kept there is unpickled. Matplotlib reads `matplotlibrc`, which may have LaTeX run. Each
library is given the name of an empty file instead, as its code is loaded; Numba's settings of the environment
(NUMBA_...) still hold.

The package does this for Numba before anything else (`marius_oac/__init__.py`), and a command for Matplotlib, too,
which in other programs belongs to its user. Nothing is imported here that Python's `-m` has not loaded already:
`__main__` says why.
"""

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # that of `typing`, which is one of those
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

_NUMBA = "numba.core.config"
_READERS = {_NUMBA: ("<module>", ".numba_config.yaml"), "matplotlib": ("matplotlib_fname", "matplotlibrc")}
"""Of a module that reads such a file: the function that has its name, and that name."""


class _Finder:
    """Finds these modules as Python does, and has their code changed."""

    def __init__(self) -> None:
        self.names = {_NUMBA}

    def find_spec(self, name: str, path: "Any" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        """See `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(name, path, target) if name in self.names else None
        if spec is not None:
            loader: Any = spec.loader
            read = loader.get_code
            loader.get_code = lambda name: _blind(read(name), name)
        return spec


def _blind(code: "CodeType", name: str) -> "CodeType":
    function, file = _READERS[name]
    changed = _replaced(code, function, file)
    if changed == code:  # rather than to run what a stranger has left there
        raise ImportError(f"this version of {name} reads {file} in a way that marius_oac does not know", name=name)
    return changed


def _replaced(code: "CodeType", function: str, file: str, within: bool = False) -> "CodeType":
    """The code with another name for a file, in a function of this name and those in it."""
    within = within or code.co_name == function
    constants = [
        _replaced(each, function, file, within) if isinstance(each, type(code))
        else os.devnull if within and each == file else each for each in code.co_consts
    ]  # fmt: skip
    return code.replace(co_consts=tuple(constants))


_finder = _Finder()


def ignored() -> None:
    """From now on Numba does not read the present folder. Where it has done so already, it takes back what it has
    read; what the program has set in `numba.config` itself goes with that."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    config: Any = sys.modules.get(_NUMBA)
    if config is not None:
        config._config_fname = os.devnull
        config.reload_config()


def ignored_by_drawings() -> None:
    """From now on Matplotlib does not read it either, nor settings of the user's, if it was not imported before."""
    _finder.names.add("matplotlib")
