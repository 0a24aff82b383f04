"""Workers: processes, one a GPU, that do independent jobs for one caller, here or elsewhere.

    caller: jobs by key --> pool --begin--> worker on GPU 0 --answer--> pool --> outcomes by key
                                 --begin--> worker on GPU 1 --died----> the job goes to another
                                 --begin--> worker on GPU 2 --mismatch-> it gets no job at all

What is a job: a key, a callable that can be pickled, and its arguments. It is called as
`call(here, *args)`, where `here` says the GPU, the folder of the worker's own cache, a deadline
and a trace. What comes back for each key is one of four outcomes (`job`): done, failed (the call
raised), refused (two workers died of it), undone (the time was over before it began).

One pool, two crews. `pool` has all of the policy: who gets which job, what is given back, who is
refused, deadlines, progress. A crew starts processes and carries bytes: `local` by
`multiprocessing`, with CUDA_VISIBLE_DEVICES set for each; `ray_crew` by actors of Ray, each of
which holds one process of the very same kind on its machine. So both do the same, and one suite
of tests is run for both.

The same answers whatever the number of workers. Outcomes come as they come; whoever needs an order
merges them by key (`job.in_order`). A job is told nothing of other jobs, nor of how many
workers there are. Where a job asks the clock, its own GPU answers, and no other job is on it.

The cache stays one. A worker has a folder of its own that reads through to the caller's where it
sees it, and hands what it has stored to the caller with its answer; the caller alone writes.

Ctrl-C and deadlines. A job has what is left of the caller's `Deadline`; a stop is sent on, and ends
its search with the best so far. The first Ctrl-C may instead be passed on to running jobs as a
KeyboardInterrupt of theirs (`first_interrupt_asks`). A job that goes on for
`TIME.worker_grace_s` after the budget is ended with its worker.

Why not what is there: `targets/cuda/compile_pool` answers lines of JSON without torch, and
`tuning/sandbox` tries kernels of one compilation; both stay, inside each worker. What both have not
is callables, a stop while a job runs, and other machines.

job        nouns: jobs, outcomes, what a call is told of where it runs
identity   what must be the same in all workers: versions and the kind of GPU
messages   what is sent to a worker and what comes back
process    the process itself
pool       the policy
local      processes of this machine
ray_crew   processes held by actors of Ray; ray_door: the package, which need not be installed
chosen     "auto", "2", "ray", "ray://HOST" -> a pool, or none
"""
