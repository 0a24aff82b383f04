"""Several independent tasks in one launch, where the plan gets faster: `decide.horizontal_fusion`,
from a plan to the same or a better one. `propose` says which tasks, `trial` builds and times the
plans."""
