"""A Kubernetes API server in one process: real protocol, real socket, 1.36.2's quirks, and faults on demand."""
