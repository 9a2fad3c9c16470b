"""The agent: start order, the merge at start, reload, standby, maintenance, and the endpoints that show it."""
