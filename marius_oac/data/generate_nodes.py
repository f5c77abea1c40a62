"""The old name of `marius_oac.data.generate.nodes`, for one version more."""

import sys

from marius_oac.config.renamed import tell
from marius_oac.data.generate.nodes import main
from marius_oac.runtime.console import standard_error

if __name__ == "__main__":
    with standard_error():
        tell("marius_oac.data.generate_nodes", "marius_oac.data.generate.nodes")
    sys.exit(main())
