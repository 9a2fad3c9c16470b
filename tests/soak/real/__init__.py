"""The soak on a real node: an installed agent, pods that lock their devices, and faults of everything around it."""
