"""The compiler: from a model to a loaded plan.

pipeline     the stages, in order, and what is tried when one fails
plan_cache   what was decided of a graph, kept between processes as one thing
precompile   kernels compiled where their GPU is not
"""
