"""The agent: start order, the start-up merge, reload, standby, maintenance, and the endpoints that show it."""
