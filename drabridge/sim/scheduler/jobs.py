"""Run Jobs, as far as the examples of the DRA pages need them.

N pods from a template, counted until complete.
"""

from __future__ import annotations

import copy
from typing import Any

from drabridge.sim.apiserver.objects import Objects, timestamp
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.scheduler.claim_controller import ended
from drabridge.sim.scheduler.events import post

JSON = dict[str, Any]


def sync_jobs(objects: Objects) -> None:
    """One step of the Job controller for every unfinished Job."""
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
    phases = [pod["status"]["phase"] for pod in mine]
    succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
    active = len([pod for pod in mine if not ended(pod)])
    completions = spec.get("completions") or spec["parallelism"]
    over = failed > spec["backoffLimit"]
    if not over:
        for _ in range(min(spec["parallelism"], completions - succeeded) - active):
            try:
                objects.create(_pod(job))
            except ApiError as error:
                post(objects, "Job", job, "FailedCreate", f"Error creating: {error.message}")
                break
            active += 1
    status: JSON = {"active": active, "succeeded": succeeded, "failed": failed}
    status = {name: count for name, count in status.items() if count}
    if succeeded >= completions:
        status["conditions"] = [
            _condition("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        ]
    elif over:
        status["conditions"] = [
            _condition("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        ]
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


def _condition(kind: str, reason: str, message: str) -> JSON:
    now = timestamp()
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
