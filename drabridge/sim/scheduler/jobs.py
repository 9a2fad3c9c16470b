"""Run Jobs, as far as the examples of the DRA pages need them.

A Job's pods are made from its template and counted until it is complete. A pod that fails is always replaced.
"""

from __future__ import annotations

import copy

from drabridge.sim.apiserver.objects import Objects, timestamp
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.scheduler.claim_controller import ended


def sync_jobs(objects: Objects) -> None:
    """Do one step of the Job controller for every unfinished Job."""
    for job in objects.peek("jobs"):
        if not any(one["status"] == "True" for one in job.get("status", {}).get("conditions", [])):
            _sync(objects, job)


def _sync(objects: Objects, job: JSON) -> None:
    meta, spec = job["metadata"], job["spec"]
    mine = [
        pod
        for pod in objects.peek("pods", meta["namespace"])
        if any(one["uid"] == meta["uid"] for one in pod["metadata"].get("ownerReferences", []))
    ]
    succeeded = sum(pod["status"]["phase"] == "Succeeded" for pod in mine)
    active = sum(not ended(pod) for pod in mine)
    completions = spec.get("completions") or spec["parallelism"]
    for _ in range(min(spec["parallelism"], completions - succeeded) - active):
        objects.create(_pod(job))
        active += 1
    status: JSON = {name: count for name, count in (("active", active), ("succeeded", succeeded)) if count}
    if succeeded >= completions:
        condition = {"type": "Complete", "status": "True", "reason": "CompletionsReached"}
        status["conditions"] = [{**condition, "lastTransitionTime": timestamp()}]
    if status != job.get("status", {}):
        objects.modify(
            "jobs",
            meta["name"],
            lambda obj: obj.update(status=status),
            namespace=meta["namespace"],
            subresource="status",
        )


def _pod(job: JSON) -> JSON:
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    labels = {"batch.kubernetes.io/job-name": meta["name"], "job-name": meta["name"]}
    labels |= template.get("metadata", {}).get("labels", {})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template.get("metadata", {}),
            "generateName": f"{meta['name']}-",
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": template["spec"],
    }
