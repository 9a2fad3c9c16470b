"""Describe pods as the simulated kubelet sees them: what they ask for, and what becomes of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """An entry of ``resources.claims``: the pod's name for a claim, and one of its requests (empty: all)."""

    name: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """One container.

    ``limits``: extended resource -> number. ``run_seconds``: ends by itself after so long; None runs until told.
    An init container with ``restart_policy="Always"`` is a sidecar: it starts in order and stays.
    """

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    claims: tuple[ContainerClaim, ...] = ()
    restart_policy: str = ""
    run_seconds: float | None = None

    @property
    def is_sidecar(self) -> bool:
        return self.restart_policy == "Always"


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of ``spec.resourceClaims`` with the claim's real name.

    The name of a template's claim is in the pod's status.
    """

    name: str
    claim_name: str


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod bound to the node. A missing ``uid`` is drawn; containers are started in the order given."""

    namespace: str
    name: str
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    extended_claim: str = ""
    """The claim that serves the pod's extended resources through DRA (KEP-5004)."""
    extended_requests: tuple[tuple[str, str, str], ...] = ()
    """(container, resource, request) of that claim's requests."""
    restart_policy: str = "Never"

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Init containers first: the order of admission."""
        return self.init_containers + self.containers

    def container(self, name: str) -> Container:
        for container in self.all_containers:
            if container.name == name:
                return container
        raise KeyError(f"pod {self.namespace}/{self.name} has no container {name!r}")

    def claim_names(self) -> tuple[str, ...]:
        """Names of every claim that the kubelet prepares, each once, in order.

        Also of those that no container refers to.
        """
        names = [claim.claim_name for claim in self.resource_claims]
        if self.extended_claim:
            names.append(self.extended_claim)
        return tuple(dict.fromkeys(names))

    def served_by_claim(self, container: str, resource: str) -> bool:
        """Whether the scheduler gave this container's extended resource to DRA."""
        return (container, resource) in [one[:2] for one in self.extended_requests]


@dataclass(frozen=True, slots=True)
class PodStatus:
    """A pod's outcome so far.

    ``waiting``: container -> why it does not start; ``restarts``: container -> count.
    """

    phase: Phase
    reason: str = ""
    message: str = ""
    waiting: Mapping[str, str] = field(default_factory=dict)
    running: tuple[str, ...] = ()
    restarts: Mapping[str, int] = field(default_factory=dict)
    completed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about a pod; ``pod`` is its name, ``at`` is ``time.monotonic()``."""

    reason: str
    message: str
    pod: str
    type: str = "Warning"
    at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class PodRecord:
    """What the API server and the runtime know of a pod.

    It outlives the kubelet process. Only the pod worker writes it.
    """

    spec: PodSpec
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    running: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    waiting: dict[str, str] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    terminating: bool = False  # deleted, and its containers are still stopping
    ending: bool = False  # its containers have exited, or were told to

    @property
    def active(self) -> bool:
        """Whether the pod is not finished, or is still stopping its containers.

        ``filterOutInactivePods`` (kubelet_pods.go).
        """
        return self.phase not in (Phase.SUCCEEDED, Phase.FAILED) or bool(self.running)

    def status(self) -> PodStatus:
        return PodStatus(
            self.phase,
            self.reason,
            self.message,
            dict(self.waiting),
            tuple(c.name for c in self.spec.all_containers if c.name in self.running),
            dict(self.restarts),
            frozenset(self.completed),
        )
