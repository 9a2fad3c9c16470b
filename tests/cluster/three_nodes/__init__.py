"""Three nodes, each with devices of its own."""
