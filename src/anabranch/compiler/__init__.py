"""The compiler: from a model to a loaded plan.

pipeline         the stages, in order, in one function
stages           what the compiler itself does at some of them
stage_runner     what stands around each: time, dumps, where to stop
fallback         the next attempt, which does less, where a plan is wrong
eager_candidate  the eager model beside the plan
dump             the text of each stage's noun, as files
compilation      what comes out
plan_cache       what was decided of a graph, kept between processes as one thing
precompile       kernels compiled where their GPU is not
"""
