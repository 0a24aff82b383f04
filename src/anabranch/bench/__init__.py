"""Benchmarks: the same model under every system, side by side in one process, with what it cost.

suite.py       models x dtypes x batches x systems -> a record
built.py       one of the systems, built: what to call, and what that took
rivals.py      the other systems, one function each
machine.py     what is timed, and how: a CUDA GPU, or the CPU (for tests)
statistics.py  samples -> median, percentiles, paired ratio, tie or not
table.py       a record as a markdown table
record.py      the zoo on this GPU -> a profile for the simulated one
"""
