"""Simulate a Kubernetes API server in one process.

Protocol and socket are real, the quirks are those of 1.36.2, faults come on demand.
"""
