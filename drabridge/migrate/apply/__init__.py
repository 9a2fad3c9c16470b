"""Do the steps of a plan on a cluster, one at a time, and undo them.

:mod:`.runner` does and undoes one step; :mod:`.state` remembers what was there before, in a file beside the plan.
"""
