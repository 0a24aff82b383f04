"""The search for an equal, faster graph (AutoGraph, AAAI 2023).

`driver` runs it. `outer_loop` (algorithm 1) takes candidates that the `engine` finds under
predicted costs (`cost`) and compares them by what they really take (`evaluation`); so is what pays
in parts of the best graph so far (`part_search`, `part_selection`, timed by `part_timing`) or at
all places at once (`global_rules`). `state` says where a search stands; what was found is kept
(`recall`).
"""
