"""How a device enters a container: CDI files and hooks."""
