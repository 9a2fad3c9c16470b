"""The rows of the ledger's table, by what they are about."""
