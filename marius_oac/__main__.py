"""`python -m marius_oac` is the command `marius-oac`.

Python has put the present folder before everything else to import from. It may be a run's, or anybody's: a yaml.py
there is not to be taken for the library. So it goes, before anything is imported that Python has not loaded already.
"""

import os
import sys

if not sys.flags.safe_path:
    del sys.path[0]

from marius_oac.nodes.launch.parent import PARENT, end_with_parent  # noqa: E402

if os.environ.get(PARENT) == str(os.getppid()):
    end_with_parent()  # before what takes seconds to import

from marius_oac.cli.commands import program  # noqa: E402

sys.exit(program())
