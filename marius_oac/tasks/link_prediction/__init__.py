"""Link prediction on a graph."""
