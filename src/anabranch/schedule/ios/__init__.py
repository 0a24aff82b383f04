"""IOS (MLSys 2021): the cheapest sequence of stages by dynamic programming. `scheduler` is its
entry."""
