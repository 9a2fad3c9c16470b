"""Kubernetes releases: what each has, what is told where it has not, and nodes older than their control plane."""
