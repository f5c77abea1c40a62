"""What a GPU has to show, in eight parts of less than eight minutes each; `python -m benchmarks.gpu --help`."""
