"""A small scheduler and the controllers around it: claims, Jobs, device taints, binding conditions."""
