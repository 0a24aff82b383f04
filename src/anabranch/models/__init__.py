"""Models by name (`load`), and the networks to measure and test with (`zoo`)."""
