"""The API server: a client, watches, events, and the versions of its API."""
