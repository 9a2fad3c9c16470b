"""``--slices``: the node's ResourceSlices, from a server that answers as an API server does, or does not."""

from __future__ import annotations

import base64
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from podresources.model import Api, PodAllocation
from podresources.resolve import slices
from podresources.resolve.api_server import ApiServer, ApiServerError, in_cluster, of_kubeconfig
from podresources.resolve.slices import Slices, read
from tests.podresources.command import run
from tests.podresources.resolve_node import GPUS, MODEL, NVIDIA
from tests.support.podresources_server import claim, claim_device, container, kubelet, listing, pod, says
from tests.support.waiting import PATIENCE

GPU0, GPU1 = GPUS[0][1], GPUS[1][1]
HELD = PodAllocation(
    "default", "p", "c", Api.DRA, driver=NVIDIA, pool="node1", device="gpu-0", claim="c", claim_namespace="default"
)


def nvidia_slice(*devices: tuple[str, str, str], generation: int = 1, version: str = "v1") -> dict[str, Any]:
    """A slice as NVIDIA's driver publishes it; v1beta1 wraps each device in ``basic``."""
    entries = []
    for name, uuid, address in devices:
        attributes = {
            "uuid": {"string": uuid},
            "resource.kubernetes.io/pciBusID": {"string": address},
            "productName": {"string": MODEL},
            "type": {"string": "gpu"},
        }
        body = {"attributes": attributes, "capacity": {"memory": {"value": "141Gi"}}}
        entries.append({"name": name} | ({"basic": body} if version == "v1beta1" else body))
    pool = {"name": "node1", "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "s"},
        "spec": {"driver": NVIDIA, "nodeName": "node1", "pool": pool, "devices": entries},
    }


class Api8s:
    """Serves pages of slices; keeps what it was asked."""

    def __init__(self, *pages: list[dict[str, Any]], version: str = "v1", status: int = 200) -> None:
        self.pages, self.version, self.status = pages, version, status
        self.asked: list[tuple[str, dict[str, list[str]], str | None]] = []
        self.hang = Event()
        self.port = 0

    @contextmanager
    def serving(self) -> Iterator[Api8s]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Tests print nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_port
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.hang.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config(f"http://127.0.0.1:{self.port}", {"token": "secret"})))
        return path

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = parse_qs(url.query)
        self.asked.append((url.path, query, handler.headers["Authorization"]))
        if f"/{self.version}" not in url.path:
            return self._say(handler, 404, {})
        if not url.path.endswith("resourceslices"):
            return self._say(handler, 200, {"kind": "APIResourceList"})
        page = int(query.get("continue", ["0"])[0])
        more = {"continue": str(page + 1)} if page + 1 < len(self.pages) else {}
        body = {"items": self.pages[page] if self.pages else None, "metadata": more}
        return self._say(handler, self.status, body)

    def _say(self, handler: BaseHTTPRequestHandler, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def config(server: str, user: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "it", "user": "me"}}],
        "clusters": [{"name": "it", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": user}],
    }


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_every_page_of_the_nodes_own_slices_in_every_version(version: str) -> None:
    pages = (
        [nvidia_slice(("gpu-0", GPU0, "0000:18:00.0"), version=version)],
        [nvidia_slice(("gpu-1", GPU1, "0000:3b:00.0"), version=version)],
    )
    with Api8s(*pages, version=version).serving() as api:
        found = read(ApiServer("127.0.0.1", api.port, None, "secret"), "node1")
    assert {key: (facts.uuid, facts.pci_bus_id, facts.model) for key, facts in found.items()} == {
        (NVIDIA, "node1", "gpu-0"): (GPU0, "0000:18:00.0", MODEL),
        (NVIDIA, "node1", "gpu-1"): (GPU1, "0000:3b:00.0", MODEL),
    }
    lists = [query for path, query, _ in api.asked if path.endswith("resourceslices")]
    assert len(lists) == 2
    assert all(query["fieldSelector"] == ["spec.nodeName=node1"] for query in lists), "never other nodes' slices"
    assert {token for _, _, token in api.asked} == {"Bearer secret"}


def test_slices_of_an_older_generation_do_not_count() -> None:
    old = nvidia_slice(("gpu-0", GPU1, "0000:3b:00.0"), ("gpu-9", GPU1, "0000:3b:00.0"), generation=1)
    new = nvidia_slice(("gpu-0", GPU0, "0000:18:00.0"), generation=2)
    for order in ([old, new], [new, old]):
        with Api8s(order).serving() as api:
            found = read(ApiServer("127.0.0.1", api.port, None), "node1")
        assert {key[2]: facts.uuid for key, facts in found.items()} == {"gpu-0": GPU0}


def test_a_list_that_does_not_end_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that was not read may be the newer one."""
    pages = [[nvidia_slice((f"gpu-{index}", GPU0, "0000:18:00.0"))] for index in range(3)]
    monkeypatch.setattr(slices, "MOST_SLICES", 2 * slices.PAGE)
    with Api8s(*pages).serving() as api, pytest.raises(ApiServerError, match="more than 200 resourceslices"):
        read(ApiServer("127.0.0.1", api.port, None), "node1")
    monkeypatch.setattr(slices, "LIST_SECONDS", 0.0)
    with Api8s(*pages).serving() as api, pytest.raises(ApiServerError, match="did not end within"):
        read(ApiServer("127.0.0.1", api.port, None), "node1")


@pytest.mark.parametrize(
    ("api", "said"),
    [
        (Api8s(status=403), "allow the verb list by RBAC"),
        (Api8s(status=401), "mount a service account's token"),
        (Api8s(status=500), "answered 500"),
        (Api8s(version="v9"), "DRA is in Kubernetes"),
        (Api8s([{"spec": 3}]), "no list of ResourceSlices"),
    ],
)
def test_a_refusal_says_what_to_do(api: Api8s, said: str) -> None:
    with api.serving(), pytest.raises(ApiServerError, match=said):
        read(ApiServer("127.0.0.1", api.port, None), "node1")


def test_a_server_that_is_down_keeps_what_was_read_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podresources.resolve.slices.REFRESH_SECONDS", 0.05)
    with Api8s([nvidia_slice(("gpu-0", GPU0, "0000:18:00.0"))]).serving() as api:
        slices = Slices(lambda: ApiServer("127.0.0.1", api.port, None), "node1")
        slices.start()
        slices.wait(5.0 * PATIENCE)
        assert slices.problems() == []
    deadline = time.monotonic() + 5 * PATIENCE
    while not slices.problems() and time.monotonic() < deadline:
        time.sleep(0.01)
    slices.close()
    assert "does not answer" in slices.problems()[0]
    assert slices.facts(HELD).uuid == GPU0


async def test_the_command_reads_slices_when_asked_to(tmp_path: Path) -> None:
    devices = (claim_device("gpu-0", driver=NVIDIA), claim_device("gpu-1", driver=NVIDIA))
    held = pod("p", container("c", claims=(claim("c", *devices),)))
    slices = [nvidia_slice(("gpu-0", GPU0, "0000:18:00.0"), ("gpu-1", GPU1, "0000:3b:00.0"))]
    with Api8s(slices).serving() as api:
        async with kubelet({"List": says(listing(held))}) as server:
            where = ("--socket", server.path, "--host-root", tmp_path)
            more = ("--resolve", "--slices", "--kubeconfig", api.kubeconfig(tmp_path), "--node", "node1")
            done = await run("list", "-o", "json", *where, *more)
            text = (await run("export", "--textfile", tmp_path / "x.prom", *where, *more)).err
    assert done.err.count("not resolved") == 0, done.err
    found = [one["resolved"] for one in json.loads(done.out)["allocations"]]
    assert [(one["uuid"], one["source"]) for one in found] == [(GPU0, "slices"), (GPU1, "slices")]
    assert text == ""
    assert f'UUID="{GPU1}"' in (tmp_path / "x.prom").read_text()


async def test_the_command_goes_on_without_an_api_server(tmp_path: Path) -> None:
    async with kubelet({"List": says(listing())}) as server:
        where = ("--socket", server.path, "--host-root", tmp_path)
        done = await run("list", *where, "--resolve", "--slices", "--kubeconfig", tmp_path / "none")
    assert done.code == 0
    assert f"note: not resolved by ResourceSlices: there is no kubeconfig {tmp_path / 'none'}" in done.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no complete current context"),
        ("[]", "no complete current context"),
        ("a: [", "kubeconfig"),
        (yaml.safe_dump(config("https://x", {"exec": {"command": "aws"}})), "runs a program"),
        (yaml.safe_dump(config("https://x", {}) | {"current-context": "two"}), "no complete current context"),
        (yaml.safe_dump(config("https://x", {}, **{"certificate-authority": "none.crt"})), "it is not there"),
        (yaml.safe_dump(config("https://x", {}, **{"certificate-authority-data": "!"})), "certificate-authority-data"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(ApiServerError, match=said):
        of_kubeconfig(path)


def test_in_a_pod_the_service_account_is_used(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "ca.crt").write_text(certificate())
    server = in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert (server.host, server.port, server.token) == ("10.0.0.1", 6443, "abc")
    with pytest.raises(ApiServerError, match="automountServiceAccountToken"):
        in_cluster({}, tmp_path)
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(ApiServerError, match="cannot be used"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def certificate() -> str:
    """Some authority of this machine: what matters is that it is one."""
    import ssl

    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not found:
        pytest.skip("this machine has no certificates")
    body = base64.encodebytes(found[0]).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


def test_what_is_wrong_with_a_kubeconfig_is_told_without_its_lines(tmp_path: Path) -> None:
    """The YAML library quotes the line, which may have the token."""
    path = tmp_path / "kubeconfig"
    path.write_text("users:\n- user: {token: TOP-SECRET\nx: [")
    with pytest.raises(ApiServerError, match="no YAML: ") as told:
        of_kubeconfig(path)
    assert "SECRET" not in "".join(traceback.format_exception(told.value))
