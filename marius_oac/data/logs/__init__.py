"""Click logs: files, columns, batches."""
