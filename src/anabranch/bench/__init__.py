"""Benchmarks: ours beside its rivals, and schedulers beside each other, on one machine.

harness.py     cells, and what makes the rows of each -> one record, saved after every cell
speed.py       models x dtypes x batches x systems, timed in common rounds
schedulers.py  every scheduler on the same kernels, as scheduled and as packed
batches.py     schedules made for one batch, run at others
delays.py      a plan's bits under random delays
reproduce.py   published tables, as one of these
statistics.py  samples -> median, percentiles, ties
rivals.py      the other systems, a function each
machine.py     how calls are timed on a target
table.py       a record -> markdown; system_tables.py and verdicts.py: several records as one
record.py      the zoo on a GPU -> a profile for the simulated target
"""
