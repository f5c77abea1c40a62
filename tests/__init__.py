"""Before torch is imported, in tests and in the processes that they start: its threads sleep while they wait.

They would spin for a while, which costs the other workers of a test run, and the nodes of a test, their processors.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
