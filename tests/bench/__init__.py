"""Benchmarks with budgets: ``python -m tests.bench [--json FILE] [NAME ...]``. Never run as tests: timings are noisy."""
