"""The agent as itself in random stories: a clock of its own, and messages that are late, lost, doubled or reordered."""
