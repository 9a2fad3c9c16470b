"""Find out who else is on this node: agents of other drivers, this agent under another name, other device plugins."""
