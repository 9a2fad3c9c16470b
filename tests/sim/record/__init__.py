"""Record what a real node shows, release by release, and see the same on the simulated one."""
