"""Reads the files that users bring, of graphs and of click logs: texts, Parquet, arrays; on disk or at an address."""
