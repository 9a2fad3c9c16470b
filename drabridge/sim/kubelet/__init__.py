"""The simulated kubelet: its sockets, its checkpoint, its pods, and its quirks."""
