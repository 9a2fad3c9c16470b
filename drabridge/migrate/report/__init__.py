"""Report who uses devices in a cluster, by which API, and what stands in the way of claims.

``collect.py`` lists objects and keeps small facts of each; ``build.py`` makes the report of them; ``text.py`` and
``page.py`` show it. Only ``collect.py`` does I/O.
"""
