"""`python -m marius_oac` is the command `marius-oac`."""

import sys

from marius_oac.cli import main

sys.exit(main())
