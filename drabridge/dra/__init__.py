"""The DRA side: registration, prepare and unprepare, ResourceSlices, health, device metadata, claim status."""
