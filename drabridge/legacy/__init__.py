"""The DevicePlugin side: one resource, one server, each grant a transition of the ledger."""
