"""Who holds which device: one ledger for both APIs, changed by one pure function, durable before anybody is answered.

>>> from drabridge.ledger.apply_event import step
>>> from drabridge.ledger.events import Allocate
>>> from drabridge.ledger.entries import Entry, Ledger, LedgerDevice, NodeState
>>> ledger = Ledger.of([Entry(LedgerDevice("gpu-0", units=("GPU-0",)))], NodeState(merged=True))
>>> result = step(ledger, Allocate({"gpu-0": ("GPU-0",)}, at=0.0))
>>> result.decision.accepted, result.applied_to(ledger).entries["gpu-0"].owner
(True, <Owner.LEGACY: 'legacy'>)
"""
