"""Survey manifests in a folder: what of them could move to claims today, and what blocks the rest.

``read.py`` does the I/O; ``tally.py`` counts and ``page.py`` and ``text.py`` show.
"""
