"""Convert manifests from limits to ResourceClaims and back: a program for an administrator's desk, not for a node."""
