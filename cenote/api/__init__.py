"""HTTP in, HTTP out: vendors' dialects on one side, the engine protocol on the other."""
