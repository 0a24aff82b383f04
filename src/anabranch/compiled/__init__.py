"""What compiling returns: a callable with a plan per input signature that can be asked why."""
