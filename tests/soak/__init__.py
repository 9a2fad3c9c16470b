"""Soak runs: a real agent under full load and many faults, judged by locks that do not depend on the agent."""
