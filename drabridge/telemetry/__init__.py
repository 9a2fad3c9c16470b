"""What becomes of facts: metrics, log lines, and a list of the last refusals."""
