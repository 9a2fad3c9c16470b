"""What each API may hand out now: pure functions of the inventory and the ledger."""
