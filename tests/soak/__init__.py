"""Soak runs: a real agent under full load and a storm of faults, judged by locks that know nothing of it."""
