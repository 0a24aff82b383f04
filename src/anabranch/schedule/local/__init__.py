"""Local search over streams, launch order and number of streams. `scheduler` is its entry."""
