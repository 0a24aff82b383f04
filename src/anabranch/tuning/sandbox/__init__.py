"""A process in which generated kernels run for the first time, and may die of it.

A `client` asks the `process`, which runs a `worker`.
"""
