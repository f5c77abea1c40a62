"""What a GPU has to show, in two calls of 150 and 300 seconds; `python -m benchmarks.gpu --help`."""
