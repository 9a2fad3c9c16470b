"""Benchmarks with budgets: ``python -m tests.bench``. Never run as tests, because timings are noisy."""
