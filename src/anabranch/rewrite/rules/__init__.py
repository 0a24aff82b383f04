"""Tables of rules. Those that always help run to a fixed point (`always`); those that might help
feed the search, and stand in files of their own."""
