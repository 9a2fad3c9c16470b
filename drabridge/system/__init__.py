"""Provide what any daemon needs of its machine: clock, files, HTTP, threads, supervision.

Nothing here knows a device.
"""
