"""Read a cluster for the report: list by list, page by page, and keep small facts of each object."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import TypeVar

from msgspec import Raw

from drabridge.errors import ClusterError, ConfigError
from drabridge.kube.api import (
    NODES,
    PODS,
    Cluster,
    DeniedError,
    ExpiredError,
    Kind,
    Listing,
    UnreachableError,
    UnservedError,
    device_classes,
    resource_claims,
    resource_slices,
    resource_versions,
)
from drabridge.kube.feature_questions import keeps_extended_names, serves_policies, slice_features
from drabridge.kube.features import EXTENDED_NAMES, POLICIES, FeatureState
from drabridge.kube.json_reader import ObjectView
from drabridge.kube.versions import RESOURCE_GROUP, choose_version
from drabridge.migrate.report import readers as read
from drabridge.migrate.report.build import Facts
from drabridge.migrate.report.document import Unread
from drabridge.migrate.report.readers import NAMESPACES, QUOTAS, WORKLOADS, all_kinds, claim_templates
from drabridge.offers.slices import ALL_FEATURES

T = TypeVar("T")
Progress = Callable[[str, int], None]
"""Called with a kind's plural name and how many of its objects have been read, from the thread that reads."""

PAUSES_SECONDS = (1.0, 3.0)  # before a LIST is started again because a page expired or the server did not answer
_PROBE = "drabridge-probe"  # driver, node and pool of the slice in the dry run
_NOTHING_CHANGED = "The report only reads, so run it again at any time"


class _CountingView(ObjectView[T]):
    """Wraps a view of objects, and reports how many objects it has read."""

    def __init__(self, view: ObjectView[T], tell: Callable[[int], None]) -> None:
        self._view = view
        self._tell = tell
        self._count = 0

    def __call__(self, data: bytes | Raw) -> T:
        self._count += 1
        self._tell(self._count)
        return self._view(data)


async def collect(cluster: Cluster, progress: Progress, pauses: tuple[float, ...] = PAUSES_SECONDS) -> Facts:
    """Read everything that the caller may read. Kinds without permission are listed in ``unread``.

    Raises ConfigError for an unusable kubeconfig; ClusterError if the API server does not answer, rejects the
    credentials, or allows nothing at all.
    """
    return await _Collector(cluster, progress, pauses).run()


class _Collector:
    def __init__(self, cluster: Cluster, progress: Progress, pauses: tuple[float, ...]) -> None:
        self._cluster = cluster
        self._progress = progress
        self._pauses = pauses
        self._facts = Facts()
        self._denied: list[DeniedError] = []

    async def run(self) -> Facts:
        found = self._facts
        try:
            found.server_version = await self._version()
            version = await self._dra_version()
            await self._ask_for_features(version)
            found.nodes = await self._list(NODES, read.NODE) or []
            spaces = await self._list(NAMESPACES, read.NAMESPACE)
            found.namespaces = None if spaces is None else dict(spaces)
            if version:
                await self._dra(version)
            found.quotas = await self._list(QUOTAS, read.QUOTA) or []
            for kind, where in WORKLOADS.items():
                found.workloads += filter(None, await self._list(where, read.WORKLOAD[kind]) or [])
            pods = await self._list(PODS, read.POD) or []
        except UnreachableError as error:
            if isinstance(error.__cause__, ConfigError):
                hint = error.hint or "Give one with --kubeconfig"
                raise ConfigError(error.message, hint=hint) from error
            hint = f"Check that the server in the kubeconfig can be reached from here. {_NOTHING_CHANGED}"
            raise UnreachableError(error.message, hint=error.hint or hint) from error
        found.pods_read = len(pods)
        found.pods = [pod for pod in pods if pod is not None]
        if len(self._denied) == len(all_kinds()) - (0 if version else 4):
            hint = "Bind the role that `drabridge migrate report --rbac` prints to your user"
            raise ClusterError(f"nothing could be read: {self._denied[0].message}", hint=hint)
        return found

    async def _dra(self, version: str) -> None:
        found = self._facts
        found.classes = await self._list(device_classes(version), read.CLASS) or []
        found.slices = await self._list(resource_slices(version), read.SLICE) or []
        found.claims = await self._list(resource_claims(version), read.CLAIM) or []
        templates = await self._list(claim_templates(version), read.TEMPLATE)
        found.templates = None if templates is None else set(templates)

    async def _version(self) -> str:
        try:
            return str((await self._cluster.read("/version")).get("gitVersion") or "unknown")
        except DeniedError as error:
            self._check_credentials(error)
            return "unknown"

    async def _ask_for_features(self, version: str) -> None:
        """Ask which features the server has. One stays unknown if the server does not tell, or denies the question."""
        features = self._facts.features
        with contextlib.suppress(ClusterError):
            features[POLICIES] = FeatureState.of(await serves_policies(self._cluster))
        if not version:
            return
        with contextlib.suppress(ClusterError):
            features[EXTENDED_NAMES] = FeatureState.of(await keeps_extended_names(self._cluster, version))
        with contextlib.suppress(ClusterError):
            answer = await slice_features(self._cluster, version, _PROBE, _PROBE, _PROBE)
            features |= {one: FeatureState.of(one in answer.kept) for one in ALL_FEATURES - answer.refused}

    async def _dra_version(self) -> str:
        """Return the version of resource.k8s.io to use; "" without DRA, which the report then mentions."""
        try:
            version = choose_version(await resource_versions(self._cluster)) or ""
        except DeniedError as error:
            self._check_credentials(error)
            self._facts.unread.append(Unread("get", f"/apis/{RESOURCE_GROUP}", error.message))
            return ""
        self._facts.serves_dra = bool(version)
        return version

    async def _list(self, kind: Kind, view: ObjectView[T]) -> list[T] | None:
        """Return the facts of all objects of a kind; None if the caller may not read it (``unread`` then says why)."""
        try:
            listing = await self._retried(kind, view)
        except DeniedError as error:
            self._check_credentials(error)
            self._denied.append(error)
            name = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            self._facts.unread.append(Unread("list", name, error.message))
            return None
        except UnservedError:
            return []
        for one in listing.unreadable:
            self._facts.unread.append(Unread("", f"{kind.plural} {one}", "it does not have the form of such an object"))
        return list(listing.items)

    async def _retried(self, kind: Kind, view: ObjectView[T]) -> Listing[T]:
        for pause in (*self._pauses, None):
            counting = _CountingView(view, functools.partial(self._progress, kind.plural))
            try:
                return await self._cluster.list(kind, view=counting)
            except UnservedError:
                raise
            except (ExpiredError, UnreachableError):
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("the last round returns or raises")

    def _check_credentials(self, error: DeniedError) -> None:
        """Raise ClusterError if the server rejects the credentials: then nothing else can be read either."""
        if getattr(error.__cause__, "status", None) == 401:
            hint = "The kubeconfig's credentials are not accepted, or have expired: log in again, then report again"
            raise ClusterError(error.message, hint=hint) from error
