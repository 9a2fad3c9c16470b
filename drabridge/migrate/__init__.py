"""From limits to claims: report on a cluster, convert manifests. For an administrator's desk, not for a node."""
