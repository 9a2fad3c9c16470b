"""Plan in which order workloads come to claims, and which devices have to be in the lane for claims before each step.

:mod:`.build` makes a plan of what the report reads; :mod:`.packing` tries each step; :mod:`.document` is the file.
"""
