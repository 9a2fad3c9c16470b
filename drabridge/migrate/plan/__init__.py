"""Plan the order in which workloads move to claims, and the devices that must be in the dra lane before each step.

:mod:`.build` makes a plan from the report's facts; :mod:`.packing` simulates each step; :mod:`.document` is the file.
"""
