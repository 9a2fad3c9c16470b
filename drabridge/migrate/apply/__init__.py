"""Follow a plan on a cluster, a step at a time, and go back.

:mod:`.runner` does and undoes one step; :mod:`.state` remembers what was there before, in a file beside the plan.
"""
