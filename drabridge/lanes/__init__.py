"""Which API may offer a free device: the desired lanes, the plan, and the moves."""
