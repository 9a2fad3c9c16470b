"""The DevicePlugin side: each resource has a server, and each grant is a transition of the ledger."""
