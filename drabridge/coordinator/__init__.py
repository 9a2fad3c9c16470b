"""Tell each agent which claims wait for a lease on its node, so that only one process watches all claims."""
