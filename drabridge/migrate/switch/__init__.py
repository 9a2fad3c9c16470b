"""Switch whole namespaces between limits and claims by a label: manifests stay as they are.

While a namespace has the label, a MutatingAdmissionPolicy in the API server turns limits of new pods into claims.
"""
