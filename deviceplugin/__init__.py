"""A device-plugin server library: servers, registration, restarts, preferred allocation. Knows no hardware."""
