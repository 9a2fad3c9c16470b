"""The transitions of the table: what a signal makes of one device.

A transition gets the transaction, the entry as it is, and the signal's argument. It returns the entry as it will be
(the same object if nothing changes) or a refusal. Which transition runs is for the table alone to say.
"""
