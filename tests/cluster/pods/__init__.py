"""What pods ask for: limits, claims of every form, parts of devices, extended resources."""
