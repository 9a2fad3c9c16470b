"""A client, command and Prometheus exporter for kubelet's PodResources API."""
