"""A node's files as resolving reads them, below a folder of the test's own, and agents that answer or do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from drabridge.system.http import HttpServer, Response

GPUS = {
    0: ("0000:18:00.0", "GPU-5f9a3c1e-0000-4000-8000-00000000000a"),
    1: ("0000:3b:00.0", "GPU-5f9a3c1e-0000-4000-8000-00000000000b"),
}
MODEL = "NVIDIA H200"
CLAIM_UID = "c8593c85-440d-4156-b199-aea592ff83df"
POD_UID = "0b6ad0a3-3bd6-4f8e-9a0c-4c8a0f1f6a11"
NVIDIA = "gpu.nvidia.com"


class NodeFiles:
    """Writes what programs of a node write."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def plugins(self) -> Path:
        return self.root / "var/lib/kubelet/plugins"

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def nvidia_driver(self) -> None:
        """``/proc/driver/nvidia`` with two GPUs, as driver 580 writes it."""
        for minor, (address, uuid) in GPUS.items():
            self.write(
                f"proc/driver/nvidia/gpus/{address}/information",
                f"Model: \t\t {MODEL}\nIRQ:   \t\t 17\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00\nBus Type: \t PCIe\n"
                f"Bus Location: \t {address}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n",
            )

    def mig_instance(self, number: int, minor: int, gpu: int = 1) -> None:
        """A GPU instance's capability, and its compute instance's with the next minor, as the driver shows them."""
        folder = f"proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi{number}"
        for path, of in ((f"{folder}/access", minor), (f"{folder}/ci0/access", minor + 1)):
            self.write(path, f"DeviceFileMinor: {of}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")

    def pci_device(self, address: str, **attributes: str) -> None:
        """A PCI device in sysfs."""
        folder = self.root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in attributes.items():
            (folder / name).write_text(f"{value}\n")

    def link_of_node(self, link: str, address: str) -> None:
        """The ``device`` link of a class device or of a node's number."""
        folder = self.root / link
        folder.mkdir(parents=True, exist_ok=True)
        depth = len(Path(link).parts)
        (folder / "device").symlink_to(Path(*[".."] * depth) / "sys/bus/pci/devices" / address)

    def nvidia_claim(self, uid: str = CLAIM_UID, *minors: int, mig: bool = False) -> None:
        """The claim's file as NVIDIA's driver writes it: YAML, the UUID nowhere, the node by its number."""
        devices = [
            {
                "name": f"{uid}-gpu-{minor}",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": f"/dev/nvidia{minor}", "hostPath": f"/run/nvidia/driver/dev/nvidia{minor}"},
                        *([{"path": f"/dev/nvidia-caps/nvidia-cap{number}"} for number in (30, 31)] if mig else []),
                    ]
                },
            }
            for minor in minors
        ]
        common = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{"path": "/dev/nvidiactl", "major": 195}]}
        kind = "k8s.gpu.nvidia.com/claim"
        document = {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": common}
        self.write(f"var/run/cdi/k8s.gpu.nvidia.com-claim_{uid}.yaml", yaml.safe_dump(document))

    def cdi(self, name: str, kind: str, *devices: dict[str, Any]) -> Path:
        document = {"cdiVersion": "0.5.0", "kind": kind, "devices": list(devices)}
        return self.write(f"var/run/cdi/{name}", json.dumps(document))

    def metadata(
        self, claim: str, device: str, attributes: dict[str, Any], *, folder: str = "", driver: str = NVIDIA
    ) -> Path:
        """A claim's metadata file (KEP-5304), namespace ``default``, request ``gpu``."""
        entry = {"driver": driver, "pool": "node1", "name": device, "attributes": attributes}
        document = {
            "apiVersion": "metadata.resource.k8s.io/v1alpha1",
            "kind": "DeviceMetadata",
            "metadata": {"name": claim, "namespace": "default", "uid": CLAIM_UID, "generation": 1},
            "requests": [{"name": "gpu", "devices": [entry]}],
        }
        path = f"var/lib/kubelet/plugins/{driver}/dra-device-metadata/{folder or f'default_{claim}'}/gpu/metadata.json"
        return self.write(path, json.dumps(document) + "\n")

    def kubelet_checkpoints(self, device: tuple[str, str, str, str], *claims: tuple[str, str, str]) -> None:
        """``(resource, id, container, pod UID)`` and ``(namespace, claim, pod UID)``, as kubelet 1.36.2 writes them."""
        resource, device_id, box, uid = device
        entry = {"PodUID": uid, "ContainerName": box, "ResourceName": resource, "DeviceIDs": {"-1": [device_id]}}
        devices = {"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {resource: [device_id]}}, "Checksum": 1}
        self.write("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", json.dumps(devices))
        infos = [
            {"ClaimUID": CLAIM_UID, "ClaimName": claim, "Namespace": namespace, "PodUIDs": {pod: {}}, "DriverState": {}}
            for namespace, claim, pod in claims
        ]
        state = {"kind": "DRACheckpoint", "ClaimInfoStateList": infos}
        self.write("var/lib/kubelet/dra_manager_state", json.dumps({"Data": json.dumps(state), "Checksum": 1}))

    def logs(self, namespace: str, pod: str, uid: str = POD_UID) -> None:
        (self.root / "var/log/pods" / f"{namespace}_{pod}_{uid}").mkdir(parents=True, exist_ok=True)

    def runs(self, uid: str) -> None:
        (self.root / "var/lib/kubelet/pods" / uid).mkdir(parents=True, exist_ok=True)


@asynccontextmanager
async def agent(path: Path, document: dict[str, Any]) -> AsyncIterator[None]:
    """The agent's own HTTP server on its socket, with this status document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    server = HttpServer({("GET", "/status"): lambda _: Response.json(document)})
    await server.listen_unix(path)
    try:
        yield
    finally:
        await server.close()


@asynccontextmanager
async def strange_agent(path: Path, answer: bytes, *, every_seconds: float = 0.0) -> AsyncIterator[None]:
    """Something else on the agent's socket: it says ``answer``, byte by byte if told so, and then nothing, for ever."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for byte in answer if every_seconds else ():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(every_seconds)
            if not every_seconds:
                writer.write(answer)
            await ended.wait()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield
    finally:
        ended.set()
        server.close()
        await server.wait_closed()
