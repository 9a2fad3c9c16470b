"""The agent's configuration: one model, a loader that reports every error at once, and what follows from the model."""
