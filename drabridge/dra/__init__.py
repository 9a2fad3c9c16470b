"""The DRA side: registration, prepare, unprepare, ResourceSlices, health, metadata, claim status."""
