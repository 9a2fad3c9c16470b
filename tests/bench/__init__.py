"""Benchmarks with budgets: ``python -m tests.bench``. Never run as tests, because timings are noisy."""

import os

# Before the first module imports grpc: what its servers say of clients that went away is not for who reads the table.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
