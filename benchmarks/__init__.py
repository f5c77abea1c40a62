"""What the package is measured by; benchmarks/README.md says what is where."""

from benchmarks.clean_environment import restart_without_coretype

restart_without_coretype()
