"""The battery: bad input and bad environments, one case each, held to the same promises.

A command that can't do what it is asked for ends with exit code 2 (128 + n after signal n), says so in one line that
names the file, line or key, shows no traceback, and leaves folders, processes and threads as they were.

- `cases.py` says what a case is, `makers.py` has what stands in its folder.
- `table_*.py` hold the cases by theme. Those of `table_processes_*.py` run in processes of their own, the others
  through `main(argv)`.
- `test_quick.py` and `test_processes.py` run them.

On 2026-11-23 there were 659 cases in process and 66 in processes. Processor time, on an AMD EPYC of which there were 2
cores: 27 s for all in process, the imports and the runs that they start from included; 3.1 s for each of the others,
which are slow tests, 205 s in all.
"""
