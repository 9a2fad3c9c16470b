"""Define the default waiting times of `safety` in the configuration and of the ledger.

``config.schema.Safety`` has those that an operator may change; ``ledger.policy.LedgerPolicy`` gives them to the rules.
"""

MIN_HOLD_SECONDS = 30.0  # kubelet's record follows Allocate's reply within milliseconds; this is ten polls
UNCONFIRMED_SECONDS = 120.0  # a pod rejected after Allocate never shows up: its device is held so long, then released
ABSENT_SECONDS = 10.0  # processes of a force-deleted pod outlive its listing by about 2 s (dra-example-driver#263)
SETTLE_SECONDS = 60.0  # a new kubelet lists only the pods that it knows so far; it knows all within a minute
QUIESCE_SECONDS = 30.0  # a scheduler may still use a withdrawn slice
TOMBSTONE_SECONDS = 60.0  # dropping an id that may be in an Allocate crashes kubelet 1.36.2
