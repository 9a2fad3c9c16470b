"""Move workloads from limits to claims: report, convert, plan, switch. For an administrator's desk, not for a node."""
