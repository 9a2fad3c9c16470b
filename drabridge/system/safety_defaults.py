"""Hold the seconds that doubt lasts by default: for `safety` in the configuration, and the ledger.

``config.schema.Safety`` says what an operator may change, ``ledger.policy.LedgerPolicy`` is what the rules are given.
"""

MIN_HOLD_SECONDS = 30.0  # from Allocate's reply to kubelet's record it takes milliseconds; ten polls' worth of doubt
UNCONFIRMED_SECONDS = 120.0  # a pod rejected after Allocate never shows up: hold it longer, then let go
ABSENT_SECONDS = 10.0  # processes of a force-deleted pod outlive its listing by about 2 s (dra-example-driver#263)
SETTLE_SECONDS = 60.0  # a new kubelet lists only the pods it knows so far; it re-syncs all within a minute
QUIESCE_SECONDS = 30.0  # a scheduler may still act on a slice that was withdrawn
TOMBSTONE_SECONDS = 60.0  # dropping an id that may be in an Allocate crashes kubelet 1.36.2
