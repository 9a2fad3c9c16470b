"""The beds themselves: that they see what they should, and that the simulated one behaves as the real one."""
