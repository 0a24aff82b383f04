"""The CPU target: real execution and real measurement, with worker threads as streams."""
