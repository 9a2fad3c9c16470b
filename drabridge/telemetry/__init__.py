"""Where facts go: metrics, log lines, a short memory of refusals."""
