"""Convert manifests from limits to ResourceClaims, and back.

``conversion.py`` is text in, text and findings out; ``yaml_nodes.py`` and ``splice.py`` below it know nothing of
Kubernetes. Only ``files.py`` does I/O.
"""
