"""The command line: one file per verb, `app.py` puts them together.

| verb | does |
|---|---|
| compile | MODEL -> a plan: a summary, a file, a report |
| bench | MODEL... beside other systems, schedulers, batches (verbs of its own) |
| reproduce | a published table, on this machine |
| explain | FILE or MODEL: what was rewritten, fused, chosen and refused, and why |
| space | how many schedules the blocks of a MODEL, or a dag, have |
| buckets | the sizes that calls have -> which of them to compile |
| precompile | the kernels that MODEL... may need on a GPU that is not here -> the cache |
| record | the zoo on this GPU -> a profile for the simulated target |
| discover | rules that small graphs are found to obey -> a file |
| fuzz | random models, compiled and compared with what they were |
| doctor | what is installed, what will be used, what is missing |
| cache | ls, stats, clear, path |

Exit status: 0 done, 1 the work failed, 2 wrong usage, 130 interrupted; where there is a best so far
(compile, explain, bench schedulers) the first Ctrl-C ends with that. Results go to stdout,
progress and errors to stderr; `--json FILE` writes what the screen says, `-` being stdout.
"""

from anabranch.cli.app import main

__all__ = ["main"]
