"""A small scheduler and the controllers around it: claims, Jobs, device taints, binding conditions."""

from drabridge.sim.scheduler.scheduler import Scheduler, SchedulerTimings

__all__ = ["Scheduler", "SchedulerTimings"]
