"""From another plugin to this one, and from limits to claims, and back."""
