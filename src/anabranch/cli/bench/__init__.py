"""anabranch bench: what takes how long, one file per verb, `app.py` puts them together.

| verb | compares | rows are |
|---|---|---|
| speed | what users get with eager and torch.compile; meant where no verb is named | systems |
| systems | published systems, by what each of them decides | systems |
| ablate | our search with parts left out, or with other settings | systems |
| schedulers | every scheduler on the same kernels | schedulers |
| batches | schedules made for one batch, at the others | batches |
| delays | a plan's bits with those that it leaves under random delays | schedulers |
| training | whole training steps with eager and torch.compile; meant by `--training` | systems |
| summary | records of speed, systems, ablate or schedulers, as one | |

All but `summary` write records of one format (`anabranch.bench.harness`).
"""

from anabranch.cli.bench.app import app

__all__ = ["app"]
