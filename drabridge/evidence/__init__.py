"""What kubelet, its checkpoint and the API say about who holds a device: facts for the ledger, never decisions."""
