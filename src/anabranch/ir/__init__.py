"""The nouns every room speaks of, and the sockets between rooms. Nothing here touches a device,
the environment or a file; everything is a frozen value or a function of values."""
