"""``drabridge demo``: a real agent on this machine's devices beside a simulated cluster, step by step, for a person."""
