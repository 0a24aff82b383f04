"""Tuning: from a rewritten graph to tasks that all have the fastest kernel there is for them.

job          what is to be compiled, and what its stages may use
build        fuse -> kernels -> probe -> schedule: what a graph becomes, in earnest or on trial
tuner        cuts of a graph -> kernels for all of them -> the fastest stretches put together
select       for every task the fastest of the kernels that providers offer, by measurement
verdict      how far a kernel came: tried, ran, right, chosen
sandbox/     generated kernels run first in a process that may die of it
verify/      does a kernel, or a plan, compute what it stands for
horizontal/  independent tasks in one launch
launch/      programmatic dependent launch, and how much of L1 is shared memory
"""
