"""What people see of an agent: one status document, its wording, and the page that shows it."""
