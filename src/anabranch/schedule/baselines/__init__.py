"""Published schedulers to compare with, each in one pass over the graph."""
