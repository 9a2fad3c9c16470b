"""What many agents cost a real API server, beside upstream's helper in Go: ``python -m tests.bench.scale --real``."""
