"""The client of the API server against the simulated one, over HTTP and HTTPS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from drabridge.errors import ClusterError
from drabridge.kube import watch
from drabridge.kube.api import (
    NODES,
    ConflictError,
    DeniedError,
    ExpiredError,
    InvalidError,
    Kind,
    NotFoundError,
    UnreachableError,
    UnservedError,
    backoff,
    resource_claims,
    resource_slices,
    resource_versions,
)
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.json_reader import AmbiguousObject, Json, ObjectIdentity, ObjectView, decode
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.servers import QuietHandler, served
from tests.support.waiting import HANG_SECONDS, PATIENCE, until

SLICES = resource_slices("v1")


@contextlib.asynccontextmanager
async def connected(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[SimApiServer, KubernetesCluster]]:
    async with SimApiServer(**options) as api:
        cluster = KubernetesCluster.from_kubeconfig(api.kubeconfig(tmp_path / "kubeconfig"))
        try:
            yield api, cluster
        finally:
            cluster.close()


def a_slice(name: str = "s1", generation: int = 1) -> dict[str, Any]:
    pool = {"name": "node-a", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "nodeName": "node-a", "pool": pool}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("tls", [False, True])
async def test_objects_are_created_read_changed_and_deleted(tmp_path: Path, tls: bool) -> None:
    async with connected(tmp_path, tls=tls) as (api, cluster):
        created = await cluster.create(SLICES, a_slice())
        assert created["metadata"]["uid"]
        assert await cluster.get(SLICES, "s1") == created
        created["spec"]["pool"]["generation"] = 2
        replaced = await cluster.replace(SLICES, created)
        assert replaced["spec"]["pool"]["generation"] == 2
        applied = await cluster.apply(SLICES, a_slice(generation=3), manager="test")
        assert applied["spec"]["pool"]["generation"] == 3
        assert api.requests[-1].content_type == "application/apply-patch+yaml"
        assert api.requests[-1].query["fieldManager"] == "test"
        await cluster.delete(SLICES, "s1", uid=created["metadata"]["uid"])
        await cluster.delete(SLICES, "s1")  # gone already: no error
        assert all(request.user_agent.startswith("drabridge/") for request in api.requests)


async def test_a_field_that_is_newer_than_the_client_survives(tmp_path: Path) -> None:
    """Typed models of the client refuse or drop it; plain dicts keep what the server says."""
    async with connected(tmp_path) as (api, cluster):
        api.objects.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "annotations": {"x": "1"}}})
        assert (await cluster.get(NODES, "n"))["metadata"]["annotations"] == {"x": "1"}


async def test_refusals_come_as_our_errors_with_the_servers_words(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        await cluster.create(SLICES, a_slice())
        with pytest.raises(ConflictError, match="already exists"):
            await cluster.create(SLICES, a_slice())
        with pytest.raises(NotFoundError, match='"nope" not found'):
            await cluster.get(SLICES, "nope")
        with pytest.raises(InvalidError, match="is invalid"):
            await cluster.create(SLICES, a_slice("s2", generation=-1))
        with pytest.raises(ConflictError, match="does not match the UID"):
            await cluster.delete(SLICES, "s1", uid="00000000-0000-0000-0000-000000000000")
        for status in (429, 500, 503):
            api.faults.fail(1, status, verb="get")
            with pytest.raises(UnreachableError):
                await cluster.get(SLICES, "s1")
        api.faults.fail(1, 403, verb="get")
        with pytest.raises(DeniedError):
            await cluster.get(SLICES, "s1")


async def test_a_version_that_is_not_served_says_nothing_of_any_object(tmp_path: Path) -> None:
    """404 both: the object is not there, or the path is nobody's."""
    async with connected(tmp_path, versions=("v1",)) as (api, cluster):
        with pytest.raises(NotFoundError):
            await cluster.get(resource_claims("v1"), "gone", namespace="default")
        for kind in (resource_claims("v1beta1"), resource_claims("v9")):
            with pytest.raises(UnservedError):
                await cluster.get(kind, "gone", namespace="default")
            with pytest.raises(UnservedError):
                await cluster.list(kind)
            with pytest.raises(UnservedError):
                await cluster.delete(kind, "gone", namespace="default")
        assert await resource_versions(cluster) == ("v1",)
        api.versions = ()
        assert await resource_versions(cluster) == ()


@pytest.mark.parametrize(
    "answer", [b"404 page not found\n", b"<html>", b"[]", b"{}", b'{"details": [1]}', b'{"details": {"name": ""}}']
)
async def test_a_404_that_names_no_object_is_not_about_one(tmp_path: Path, answer: bytes) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with served(Handler) as url:
        cluster = {"name": "c", "cluster": {"server": url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        config = {"current-context": "c", "clusters": [cluster], "contexts": [context], "users": users}
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        client = KubernetesCluster.from_kubeconfig(tmp_path / "kubeconfig")
        with pytest.raises(UnservedError):
            await client.get(resource_claims("v1"), "cl1", namespace="default")
        client.close()


async def test_a_server_that_is_away_or_silent_is_unreachable_in_time(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        cluster._timeout = (0.5, 0.3)
        api.faults.hang(1, verb="get")
        begin = asyncio.get_running_loop().time()
        with pytest.raises(UnreachableError, match="no answer from the API server"):
            await cluster.get(SLICES, "s1")
        assert asyncio.get_running_loop().time() - begin < 2 * PATIENCE
        api.faults.partition()
        with pytest.raises(UnreachableError):
            await cluster.get(SLICES, "s1")
        api.faults.heal()
        cluster._timeout = (HANG_SECONDS, HANG_SECONDS)
        assert (await cluster.list(SLICES)).items == ()


async def test_a_rotated_token_is_read_again_after_401(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        old = api.token("node-a")
        api.kubeconfig(tmp_path / "kubeconfig", token=old)
        await cluster.list(SLICES)
        api.revoke(old)
        with pytest.raises(DeniedError):
            await cluster.list(SLICES)
        api.kubeconfig(tmp_path / "kubeconfig", token=api.token("node-a"))
        assert (await cluster.list(SLICES)).items == ()


OTHER = {"authorities": "another authority", "server_name": "elsewhere.example.com"}


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize("wrong", OTHER)
async def test_another_server_than_the_one_that_is_meant_gets_no_request(tmp_path: Path, wrong: str) -> None:
    async with SimApiServer(tls=True) as api, SimApiServer(tls=True) as other:
        assert other.certificate is not None
        right = KubernetesCluster.from_kubeconfig(api.kubeconfig(tmp_path / "kubeconfig")).access()
        changed = other.certificate.decode() if wrong == "authorities" else OTHER[wrong]
        found = [replace(right, **{wrong: changed})]
        cluster = KubernetesCluster(lambda: found[-1])
        try:
            with pytest.raises(UnreachableError, match="SSLError"):
                await cluster.list(SLICES)
            with pytest.raises(UnreachableError, match="SSLError"):
                await anext(cluster.watch(SLICES, resource_version="1"))
            assert not api.requests
            found.append(right)  # as when an authority was renewed: nobody starts the agent again for it
            assert (await cluster.list(SLICES)).items == ()
            found.append(replace(found[0], verify=False))
            cluster._forget()
            assert (await cluster.list(SLICES)).items == ()
        finally:
            cluster.close()


async def test_a_small_process_has_another_one_read_the_kubeconfig(tmp_path: Path) -> None:
    async with SimApiServer(tls=True) as api:
        file = api.kubeconfig(tmp_path / "kubeconfig")
        small = KubernetesCluster.from_kubeconfig(file, small=True)
        try:
            assert small.access() == KubernetesCluster.from_kubeconfig(file).access()
            assert (await small.list(SLICES)).items == ()
        finally:
            small.close()
        missing = KubernetesCluster.from_kubeconfig(tmp_path / "none", small=True)
        with pytest.raises(UnreachableError, match="none is not a kubeconfig"):
            await missing.list(SLICES)
        missing.close()


PLUGIN = """\
#!/bin/sh
test -s {token} || {{ echo "log in first" >&2; exit 1; }}
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "%s"}}}}' \\
  "$(cat {token})"
"""


@pytest.mark.parametrize("small", [False, True])
async def test_a_kubeconfig_may_name_a_program_that_gives_the_token(tmp_path: Path, small: bool) -> None:
    async with SimApiServer(tls=True) as api:
        file, plugin, token = api.kubeconfig(tmp_path / "kubeconfig"), tmp_path / "plugin", tmp_path / "token"
        plugin.write_text(PLUGIN.format(token=token))
        plugin.chmod(0o700)
        config = yaml.safe_load(file.read_text())
        command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
        config["users"][0]["user"] = {"exec": command}
        file.write_text(yaml.safe_dump(config))
        cluster = KubernetesCluster.from_kubeconfig(file, small=small)
        try:
            for _ in range(2):
                given = api.token("node-a")
                token.write_text(given)
                assert (await cluster.list(SLICES)).items == ()
                assert api.requests[-1].user == "system:serviceaccount:kube-system:drabridge"
                api.revoke(given)
                with pytest.raises(DeniedError):
                    await cluster.list(SLICES)  # the program is asked again by the next request
        finally:
            cluster.close()


async def test_a_pods_service_account_is_used_inside_a_cluster(tmp_path: Path) -> None:
    async with SimApiServer(tls=True) as api:
        assert api.certificate is not None
        (tmp_path / "token").write_text(api.token("node-a"))
        (tmp_path / "ca.crt").write_bytes(api.certificate)
        host, port = api.url.removeprefix("https://").split(":")
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        cluster = KubernetesCluster.in_cluster(tmp_path, environ)
        try:
            await cluster.list(SLICES)
            assert api.requests[-1].user == "system:serviceaccount:kube-system:drabridge"
        finally:
            cluster.close()


async def test_outside_a_cluster_the_error_says_what_to_do(tmp_path: Path) -> None:
    for cluster in (KubernetesCluster.in_cluster(tmp_path, {}), KubernetesCluster.from_kubeconfig(tmp_path / "none")):
        with pytest.raises(UnreachableError, match=r"not a pod with a service account|none is not a kubeconfig"):
            await cluster.list(SLICES)
        with pytest.raises(UnreachableError, match=r"not a pod with a service account|none is not a kubeconfig"):
            await anext(cluster.watch(SLICES, resource_version="1"))
        cluster.close()


async def test_a_closed_client_answers_like_a_server_that_is_gone(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        await cluster.list(SLICES)
        cluster.close()
        before = len(api.requests)
        with pytest.raises(UnreachableError, match="was closed"):
            await cluster.list(SLICES)
        with pytest.raises(UnreachableError, match="was closed"):
            await anext(cluster.watch(SLICES, resource_version="1"))
        assert len(api.requests) == before


async def test_long_lists_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.kube.client.PAGE", 2)
    async with connected(tmp_path) as (api, cluster):
        for index in range(5):
            await cluster.create(SLICES, a_slice(f"s{index}"))
        listing = await cluster.list(SLICES, field_selector="spec.nodeName=node-a")
        assert [item["metadata"]["name"] for item in listing.items] == [f"s{index}" for index in range(5)]
        assert sum(request.verb == "list" for request in api.requests) == 3


async def test_pages_have_as_many_objects_as_their_size_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.kube.client.PAGE_BYTES", 20_000)
    monkeypatch.setattr("drabridge.kube.client.MOST_PAGE_BYTES", 80_000)
    async with connected(tmp_path) as (api, cluster):
        names = [f"s{index:02}" for index in range(40)]
        for index, name in enumerate(names):
            body = a_slice(name)
            body["metadata"]["annotations"] = {"a": "x" * (30_000 if index in (0, 1, 2, 30) else 1)}
            await cluster.create(SLICES, body)
        view: ObjectView[str] = ObjectView(lambda obj: str(obj["metadata"]["name"]))
        assert (await cluster.list(SLICES, view=view)).items == tuple(names)
        sizes = [request.sent_bytes for request in api.requests if request.verb == "list"]
        assert sum(size > 80_000 for size in sizes) == 1
        assert 5 < len(sizes) < 15


async def test_a_long_list_delays_no_other_request(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        await cluster.create(SLICES, a_slice())
        api.faults.hang(1, verb="list", resource="resourceclaims")
        listing = asyncio.ensure_future(cluster.list(resource_claims("v1")))
        async with asyncio.timeout(3 * PATIENCE):
            await until_asked(api, "resourceclaims")
            assert (await cluster.get(SLICES, "s1"))["metadata"]["name"] == "s1"
            await cluster.delete(SLICES, "s1")
        assert not listing.done()
        cluster.close()
        listing.cancel()
        await asyncio.gather(listing, return_exceptions=True)


async def test_an_object_that_cannot_be_read_leaves_out_no_other(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, cluster):
        for index in range(3):
            await cluster.create(SLICES, a_slice(f"s{index}"))
        view: ObjectView[str] = ObjectView(lambda obj: {"s0": "zero", "s2": "two"}[obj["metadata"]["name"]])
        listing = await cluster.list(SLICES, view=view)
        assert listing.items == ("zero", "two")
        assert [identity.name for identity in listing.unreadable] == ["s1"]


async def until_asked(api: SimApiServer, resource: str) -> None:
    while not any(request.resource == resource for request in api.requests):
        await asyncio.sleep(0.01)


async def test_a_list_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.kube.client.PAGE", 1)
    monkeypatch.setattr("drabridge.kube.client.MOST_PAGES", 3)  # as behind a proxy that forgets where the list was
    async with connected(tmp_path) as (_, cluster):
        for index in range(4):
            await cluster.create(SLICES, a_slice(f"s{index}"))
        with pytest.raises(UnreachableError, match="has no end"):
            await cluster.list(SLICES)
        await cluster.delete(SLICES, "s3")
        assert len((await cluster.list(SLICES)).items) == 3


async def test_requests_do_not_wait_for_a_watch_that_gets_no_answer(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        api.faults.hang(1, verb="watch")
        events = cluster.watch(SLICES, resource_version=(await cluster.list(SLICES)).resource_version)
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(3 * PATIENCE):  # a watch is waited for longer
            await cluster.list(SLICES)
        assert not following.done()
        cluster.close()
        with contextlib.suppress(asyncio.CancelledError):
            following.cancel()
            await following


async def test_a_watch_sees_changes_and_ends_without_leaving_a_thread_blocked(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, cluster):
        listing = await cluster.list(SLICES)
        selector = "spec.driver=d.example.com"
        events = cluster.watch(SLICES, field_selector=selector, resource_version=listing.resource_version)
        seen: list[str] = []
        async with contextlib.aclosing(events):
            await cluster.create(SLICES, a_slice())
            async for event in events:
                seen.append(event.type)
                if event.object is None:
                    continue
                if event.type == "ADDED":
                    await cluster.replace(SLICES, {**event.object, "spec": a_slice(generation=7)["spec"]})
                elif event.type == "MODIFIED":
                    assert event.object["spec"]["pool"]["generation"] == 7
                    await cluster.delete(SLICES, "s1")
                elif event.type == "DELETED":
                    break
        assert [kind for kind in seen if kind != "BOOKMARK"] == ["ADDED", "MODIFIED", "DELETED"]
        for _ in range(200 * PATIENCE):
            if not any(thread.name == "watch-resourceslices" for thread in threading.enumerate()):
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the thread of a closed watch still reads")


async def test_the_time_to_connect_is_not_the_time_of_a_watch(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        cluster._watch_timeout = (0.3, HANG_SECONDS)
        version = (await cluster.list(SLICES)).resource_version
        async with contextlib.aclosing(cluster.watch(SLICES, resource_version=version)) as events:
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(1)
            assert not first.done()
            await cluster.create(SLICES, a_slice())
            assert (await first).type == "ADDED"
        assert sum(request.verb == "watch" for request in api.requests) == 1


class Told:
    """What a follower was told, in order."""

    view: ObjectView[Json] = ObjectView(dict)

    def __init__(self) -> None:
        self.words: list[str] = []

    def listed(self, objects: tuple[Json, ...]) -> None:
        self.words.append(f"listed {len(objects)}")

    def changed(self, kind: str, obj: Json) -> None:
        self.words.append(f"{kind} {obj['metadata']['name']}")

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        self.words.append(f"{kind} {identity}, unreadable")

    def lost(self, error: ClusterError) -> None:
        self.words.append(f"lost {error}")


async def test_a_watch_of_a_kind_without_objects_is_silent_and_goes_on_without_another_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LEAST_WATCH_SECONDS", 0.0)
    async with connected(tmp_path) as (api, cluster):
        cluster._watch_timeout = (3 * PATIENCE, 0.3)
        told = Told()
        following = asyncio.create_task(watch.follow(cluster, SLICES, "", told))

        def asked(verb: str) -> int:
            return sum(request.verb == verb and request.resource == "resourceslices" for request in api.requests)

        while asked("watch") < 3:
            await asyncio.sleep(0.01)
        await cluster.create(SLICES, a_slice())
        while "ADDED s1" not in told.words:
            await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert told.words == ["listed 0", "ADDED s1"]
        assert asked("list") == 1


async def test_a_watch_that_is_cut_ends_and_the_next_one_goes_on_unless_the_server_is_gone(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        cluster._watch_timeout = (HANG_SECONDS, HANG_SECONDS)
        version = (await cluster.list(SLICES)).resource_version
        following = asyncio.ensure_future(anext(cluster.watch(SLICES, resource_version=version), None))
        await until(api.faults.drop_watches)
        assert await following is None
        api.faults.partition()
        with pytest.raises(UnreachableError):
            await anext(cluster.watch(SLICES, resource_version=version))


async def test_a_watch_from_too_long_ago_is_expired(tmp_path: Path) -> None:
    async with connected(tmp_path) as (api, cluster):
        api.faults.fail(1, 410, verb="watch")
        with pytest.raises(ExpiredError):
            async for _ in cluster.watch(SLICES, resource_version="1"):
                pass


def test_invalid_names_never_reach_a_url() -> None:
    assert resource_claims("v1").path("ns", "cl", "status") == (
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/cl/status"
    )
    assert NODES.path(name="n") == "/api/v1/nodes/n"
    for name in ("../secrets", "a/b", "a?b", "..", "a b"):
        with pytest.raises(InvalidError):
            Kind("", "v1", "pods").path("ns", name)


def test_duplicate_keys_are_recorded() -> None:
    plain, doubled = decode('[{"a": 1}, {"b": {"a": 1, "a": 2}}]')
    assert type(plain) is dict
    assert isinstance(doubled["b"], AmbiguousObject)
    assert doubled["b"] == {"a": 2}
    assert doubled["b"].duplicates == ("a",)


def test_backoff_grows_to_its_limit_with_jitter() -> None:
    delays = backoff(1.0, 8.0)
    drawn = [next(delays) for _ in range(8)]
    for delay, most in zip(drawn, (1, 2, 4, 8, 8, 8, 8, 8), strict=True):
        assert most / 2 <= delay <= most


def test_http_is_imported_only_when_somebody_connects() -> None:
    code = "import sys, drabridge.kube.client, drabridge.dra.driver; sys.exit('urllib3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=5 * HANG_SECONDS).returncode == 0
