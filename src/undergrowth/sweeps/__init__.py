"""Many runs in one command: the variants of a sweep, the runs that exist already, and several runs at a time."""
