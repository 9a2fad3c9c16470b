"""MIG instances: what they are called, what they bring, and that a GPU and its instances are never both given out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.inventory import mig as mig_devices
from drabridge.inventory.devices import Device, Presence, Semver
from drabridge.inventory.match import explain
from drabridge.inventory.nvidia import Failure, FailureKind, MigInstance, read
from drabridge.ledger.entries import ClaimRef, Owner
from drabridge.offers.pool import pool_of
from drabridge.offers.slices import desired_slices
from tests.support import machines
from tests.support.hardware import record
from tests.support.inventory_and_ledger import Machine
from tests.support.mig import MIG_UUID, cap, capabilities, facts, gpu, instance, nodes
from tests.support.umockdev import needs_umockdev, run_under_umockdev

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
MIXED = EXAMPLES / "nvidia-mig.yaml"
CLAIM, OTHER = ClaimRef("u1", "ns", "c"), ClaimRef("u2", "ns", "d")
WHOLE = machines.GPU_UUID.format(0).lower()


def mixed() -> Config:
    return load(MIXED)


def single() -> Config:
    """The example with the three changes that its head names."""
    text = MIXED.read_text().replace("- name: nvidia.com/gpu\n", "- name: nvidia.com/gpu-whole\n")
    text = text.replace("{of: nvidia.com/gpu}", "{of: nvidia.com/gpu-whole}\n  uniform: attr:profile")
    return load(text.replace("- name: nvidia.com/mig-{attr:profile}", "- name: nvidia.com/gpu"))


class Server(Machine):
    """GPUs under a configuration; :meth:`show` is what happens when others make and remove instances."""

    def __init__(self, config: Config, count: int = 1) -> None:
        super().__init__(config, nodes(count=count))
        self.count = count

    def show(self, *instances: MigInstance, **more: object) -> dict[str, Device]:
        self.host.nodes.update(nodes(instances))
        self.nvidia = facts(instances, self.count, **more)  # type: ignore[arg-type]
        return self.see(*map(gpu, range(self.count)))

    def resources(self) -> dict[str, list[str]]:
        """The devices that can be had now, by resource."""
        found: dict[str, list[str]] = {}
        for entry in self.ledger.entries.values():
            if self.offered(entry.name):
                found.setdefault(entry.device.resource, []).append(entry.name)
        return {name: sorted(names) for name, names in found.items()}


def name(index: int, gi: int, ci: int = 0) -> str:
    return MIG_UUID.format(index, gi * 16 + ci).lower()


# --- what an instance is ----------------------------------------------------------------------------------------------


def test_an_instance_is_a_part_of_its_gpu_with_nvidia_s_names() -> None:
    server = Server(mixed())
    (device,) = server.show(instance(0, 9, profile="2g.20gb", start=4)).values()
    assert (device.id, device.resource, device.root) == (MIG_UUID.format(0, 144), "nvidia.com/mig-2g.20gb", WHOLE)
    assert device.presence is Presence.PRESENT, device.reason
    assert device.fallback is not None
    assert device.nodes == ()
    assert [node.path for node in device.fallback.nodes] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        f"/dev/nvidia-caps/nvidia-cap{cap(0, 9)}",
        f"/dev/nvidia-caps/nvidia-cap{cap(0, 9, 0)}",
    ]
    assert (device.pci_bus_id, device.pcie_root, device.numa_nodes) == (machines.gpu_address(0), "pci0000:17", (0,))
    # kubernetes-sigs/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin/mig.go, CommonAttributesMig and CommonCapacitiesMig
    assert device.attributes == {
        "type": "mig",
        "uuid": device.id,
        "parentUUID": machines.GPU_UUID.format(0),
        "profile": "2g.20gb",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": Semver("9.0.0"),
        "driverVersion": Semver("580.95.5"),
        "cudaDriverVersion": Semver("13.0.0"),
    }
    assert device.capacity == {
        "memory": 19968 << 20,
        "multiprocessors": 32,
        "copyEngines": 1,
        "decoders": 1,
        "encoders": 0,
        "jpegEngines": 1,
        "ofaEngines": 0,
        "memorySlice4": 1,
        "memorySlice5": 1,
    }


def test_what_its_gpu_has_is_not_an_instance_s() -> None:
    server = Server(mixed())
    bare = MigInstance("MIG-bare", machines.gpu_address(0), 1, 0, {"profile": "1g.10gb"})
    (device,) = server.show(bare, gpu0={"multiprocessor_count": "132", "decoders": "7"}).values()
    assert device.capacity == {}
    assert device.presence is Presence.FAULTY
    assert "/dev/nvidia-caps/nvidia-cap{nvidia.gi_cap} cannot be filled in" in device.reason


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        ("1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1c.3g.40gb", "nvidia.com/mig-1c.3g.40gb"),
        ("1g.10gb+me,all", "nvidia.com/mig-1g.10gb.me.all"),
    ],
)
def test_resources_are_named_after_profiles(profile: str, resource: str) -> None:
    (device,) = Server(mixed()).show(instance(0, 1, profile=profile)).values()
    assert (device.resource, device.attributes["profile"]) == (resource, profile)


@pytest.mark.parametrize(
    ("profile", "why"),
    [("x" * 70, "gives no name of a resource"), ("???", "gives no name of a resource"), ("", "no attribute profile")],
)
def test_a_profile_that_is_no_name_costs_the_others_nothing(profile: str, why: str) -> None:
    server = Server(mixed())
    assert set(server.show(instance(0, 1, profile=profile), instance(0, 2))) == {name(0, 2)}
    (collision,) = server.collisions
    assert why in collision.hint
    assert collision.syspaths == (f"{gpu(0).syspath}/nvidia-mig/gi1-ci0",)


def test_only_profiles_that_were_there_are_resources() -> None:
    server = Server(mixed(), count=2)
    server.show()
    assert [resource.name for resource in server.names.config.resources] == ["nvidia.com/gpu"]
    server.show(instance(1, 1, profile="3g.40gb"))
    server.show()
    assert [resource.name for resource in server.names.config.resources] == ["nvidia.com/gpu", "nvidia.com/mig-3g.40gb"]


# --- strategies -------------------------------------------------------------------------------------------------------


def test_mixed_offers_gpus_and_instances_under_their_names() -> None:
    server = Server(mixed(), count=3)
    server.show(instance(1, 1), instance(1, 2, profile="2g.20gb"), mode=[2])
    assert server.resources() == {
        "nvidia.com/gpu": [WHOLE],
        "nvidia.com/mig-1g.10gb": [name(1, 1)],
        "nvidia.com/mig-2g.20gb": [name(1, 2)],
    }, "a GPU in MIG mode is not offered whole, with or without instances"


def test_none_offers_gpus_in_mig_mode_whole() -> None:
    server = Server(load(EXAMPLES / "nvidia-gpu.yaml"))
    server.show(instance(0, 1))
    assert server.resources() == {"nvidia.com/gpu": [WHOLE]}


def test_single_offers_uniform_instances_as_gpus_and_says_when_they_are_not() -> None:
    server = Server(single(), count=2)
    server.show(instance(0, 1), instance(1, 1))
    assert server.resources() == {"nvidia.com/gpu": [name(0, 1), name(1, 1)]}
    assert server.allocate(name(0, 1))
    devices = server.show(instance(0, 1), instance(1, 2, profile="2g.20gb"))
    assert server.resources() == {}
    assert {device.presence for device in devices.values()} == {Presence.FAULTY}
    why = "its resource must be uniform, and its devices have 1g.10gb, 2g.20gb"
    assert {device.reason for device in devices.values()} == {why}
    assert server.held(name(0, 1)), "a fault ends no hold"
    server.show(instance(0, 1), instance(1, 3))
    assert server.resources() == {"nvidia.com/gpu": [name(0, 1), name(1, 3)]}


# --- a whole and its parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["pod", "claim"])
def test_instances_of_one_gpu_have_holders_side_by_side(by: str) -> None:
    """They share the GPU's node; two compute instances of one GPU instance share its node as well."""
    server = Server(mixed())
    names = [name(0, 1), name(0, 2, 0), name(0, 2, 1)]
    server.show(instance(0, 1), instance(0, 2, 0, "1c.2g.20gb"), instance(0, 2, 1, "1c.2g.20gb"))
    for index, each in enumerate(names):
        if by == "claim":
            server.to_claims(each)
        given = server.allocate(each) if by == "pod" else server.prepare(ClaimRef(f"u{index}", "ns", "c"), each)
        assert given, server.said


@pytest.mark.parametrize("holder", ["pod", "claim"])
@pytest.mark.parametrize("taker", ["pod", "claim"])
def test_instances_of_a_gpu_that_is_held_whole_are_for_nobody(holder: str, taker: str) -> None:
    server = Server(mixed())
    server.show()
    if holder == "claim":
        server.to_claims(WHOLE)
    assert server.allocate(WHOLE) if holder == "pod" else server.prepare(CLAIM, WHOLE)
    server.show(instance(0, 1))  # somebody switches MIG mode on under the pod
    assert server.ledger.entries[WHOLE].owner is not Owner.NONE
    assert server.ledger.entries[WHOLE].device.presence is Presence.GONE
    assert server.resources() == {}
    given = server.allocate(name(0, 1)) if taker == "pod" else server.prepare(OTHER, name(0, 1))
    assert not given
    assert WHOLE in server.said


@pytest.mark.parametrize("holder", ["pod", "claim"])
@pytest.mark.parametrize("taker", ["pod", "claim"])
def test_a_gpu_whose_instance_is_held_is_for_nobody(holder: str, taker: str) -> None:
    server = Server(mixed())
    server.show(instance(0, 1))
    if holder == "claim":
        server.to_claims(name(0, 1))
    assert server.allocate(name(0, 1)) if holder == "pod" else server.prepare(CLAIM, name(0, 1))
    server.show()  # MIG mode is off, the pod runs on
    assert server.ledger.entries[name(0, 1)].device.presence is Presence.GONE
    assert server.resources() == {}
    assert not (server.allocate(WHOLE) if taker == "pod" else server.prepare(OTHER, WHOLE))
    assert name(0, 1) in server.said
    if holder == "pod":
        server.let_go()
        assert server.resources() == {"nvidia.com/gpu": [WHOLE]}


@pytest.mark.parametrize("whole", ["pci", "drm"])
@pytest.mark.parametrize("partition", ["", "  partition: {of: nvidia.com/gpu}\n"])
def test_an_instance_is_a_part_of_its_gpu_whatever_the_configuration_says(whole: str, partition: str) -> None:
    """Also without ``partition:``, and where the GPU is matched by its card, which is not above an instance."""
    text = f"""apiVersion: drabridge/v1alpha1
kind: AgentConfig
resources:
- {{name: nvidia.com/gpu, match: {{subsystem: {whole}, sysname: ["0000:*", card0]}}, id: [whole], nodes: []}}
- name: nvidia.com/mig
  match: {{subsystem: nvidia-mig}}
  id: ["{{nvidia.uuid}}"]
  nodes: []
{partition}"""
    server = Server(load(text))
    card = record(f"{gpu(0).syspath}/drm/card0", "drm", above=gpu(0))
    server.nvidia = facts([])
    server.see(gpu(0), card)
    assert server.allocate("whole"), server.said
    server.nvidia = facts([instance(0, 1)])
    server.see(gpu(0), card)
    assert not server.allocate(name(0, 1))
    assert "whole" in server.said


def test_the_slices_have_the_instances_and_not_their_gpu() -> None:
    server = Server(load(MIXED.read_text().replace('{legacy: "*", dra: 0}', '{dra: "*"}')), count=2)
    server.show(instance(0, 1), instance(0, 2))
    for each in list(server.ledger.entries):
        server.to_claims(each)
    pool = pool_of(server.tracker.current, server.ledger, server.names.config, "node", server.now)
    entries = [entry for one in desired_slices(pool).slices.values() for entry in one.get("devices", ())]
    types = {entry["name"]: entry["attributes"]["type"]["string"] for entry in entries}
    assert types == {name(0, 1): "mig", name(0, 2): "mig", machines.GPU_UUID.format(1).lower(): "gpu"}
    (sets,) = (one["sharedCounters"] for one in desired_slices(pool).slices.values() if "sharedCounters" in one)
    assert [one["name"] for one in sets] == [WHOLE]


@pytest.mark.parametrize("kind", ["instance", "whole"])
@pytest.mark.parametrize("holder", ["pod", "claim"])
def test_another_strategy_gives_nobody_what_is_held(holder: str, kind: str) -> None:
    """From mixed to none while an instance is held, and from none to mixed while the GPU is."""
    none = load(EXAMPLES / "nvidia-gpu.yaml")
    before, after = (mixed(), none) if kind == "instance" else (none, mixed())
    server = Server(before, count=2)
    server.show(instance(0, 1), instance(0, 2))
    held = name(0, 1) if kind == "instance" else WHOLE
    if holder == "claim":
        server.to_claims(held)
    assert server.allocate(held) if holder == "pod" else server.prepare(CLAIM, held)
    server.reconfigure(after)
    server.show(instance(0, 1), instance(0, 2))
    other = machines.GPU_UUID.format(1).lower()
    assert {one for names in server.resources().values() for one in names} <= {held, other}
    assert server.held(held)
    for taken in (name(0, 2), WHOLE):
        if taken != held and taken in server.ledger.entries:
            assert not server.allocate(taken), server.said
    if holder == "pod":
        server.let_go()
        server.show(instance(0, 1), instance(0, 2))
        free = {one for names in server.resources().values() for one in names}
        assert free == ({WHOLE, other} if kind == "instance" else {name(0, 1), name(0, 2), other})


# --- what others change -----------------------------------------------------------------------------------------------


def test_a_held_instance_that_is_removed_stays_held_and_the_others_go_on() -> None:
    server = Server(mixed())
    server.show(instance(0, 1), instance(0, 2))
    assert server.allocate(name(0, 1))
    server.show(instance(0, 2), instance(0, 3, profile="2g.20gb"))
    assert server.ledger.entries[name(0, 1)].device.presence is Presence.GONE
    assert server.held(name(0, 1))
    assert server.resources() == {"nvidia.com/mig-1g.10gb": [name(0, 2)], "nvidia.com/mig-2g.20gb": [name(0, 3)]}


def test_an_instance_made_anew_in_the_place_of_a_held_one_waits_for_the_holder() -> None:
    """Its nodes have the same numbers, so the old holder's container has access to it."""
    server = Server(mixed())
    server.show(instance(0, 1))
    assert server.allocate(name(0, 1))
    again = MIG_UUID.format(0, 999)
    server.show(instance(0, 1, uuid=again), instance(0, 2))
    assert server.resources() == {"nvidia.com/mig-1g.10gb": [name(0, 2)]}
    assert not server.allocate(again.lower())
    server.let_go()
    assert again.lower() in server.resources()["nvidia.com/mig-1g.10gb"]


# --- bad input --------------------------------------------------------------------------------------------------------


def test_the_example_heeds_faults_of_gpus_and_of_instances() -> None:
    server = Server(mixed(), count=2)
    xid = Failure(FailureKind.XID, "XID 79", 79)
    ill = {MIG_UUID.format(0, 16): (xid,), machines.GPU_UUID.format(1): (xid,)}
    server.nvidia = replace(facts([instance(0, 1), instance(0, 2)], 2), failures=ill)
    server.host.nodes.update(nodes([instance(0, 1), instance(0, 2)], 2))
    devices = server.see(gpu(0), gpu(1))
    assert {each.name: each.reason for each in devices.values()} == {
        name(0, 1): "XID 79",
        name(0, 2): "",
        machines.GPU_UUID.format(1).lower(): "XID 79",
    }


def test_two_instances_of_one_uuid_are_not_offered_and_the_others_are() -> None:
    server = Server(mixed())
    server.show(instance(0, 1, uuid="MIG-x"), instance(0, 2, uuid="MIG-x"), instance(0, 3))
    assert server.resources() == {"nvidia.com/mig-1g.10gb": [name(0, 3)]}
    assert [collision.identity for collision in server.collisions] == ["MIG-x"]


def test_two_gpus_of_one_uuid_are_not_offered_and_the_others_are() -> None:
    server = Server(mixed(), count=3)
    server.show(gpu1={"uuid": machines.GPU_UUID.format(0)})
    assert server.resources() == {"nvidia.com/gpu": [machines.GPU_UUID.format(2).lower()]}
    assert len(server.collisions) == 1


def test_a_gpu_whose_uuid_changes_while_it_is_held_waits_for_the_holder() -> None:
    server = Server(mixed(), count=2)
    server.show()
    assert server.allocate(WHOLE)
    server.show(gpu0={"uuid": "GPU-other"})
    assert server.resources() == {"nvidia.com/gpu": [machines.GPU_UUID.format(1).lower()]}
    assert server.held(WHOLE)
    server.let_go()
    assert "gpu-other" in server.resources()["nvidia.com/gpu"]


def test_instances_of_a_gpu_that_udev_does_not_show_are_none() -> None:
    server = Server(mixed())
    server.nvidia = facts([instance(0, 1), instance(5, 1)])
    server.host.nodes.update(nodes([instance(0, 1)]))
    server.see(gpu(0))
    assert server.resources() == {"nvidia.com/mig-1g.10gb": [name(0, 1)]}


# --- what /proc says --------------------------------------------------------------------------------------------------


def test_the_driver_s_files_give_the_nodes_and_say_what_exists(tmp_path: Path) -> None:
    proc = capabilities(machines.nvidia_proc(tmp_path, 2), [(0, 1, 0), (0, 2, 0)])
    plain = read(proc / "driver/nvidia")
    known = MigInstance(MIG_UUID.format(0, 16), machines.gpu_address(0), 1, 0, {"profile": "1g.10gb"})
    found = mig_devices.with_capabilities(type(plain)(plain.gpus, (known,)), proc)
    first, second = found.mig
    assert (first.uuid, first.fields["profile"]) == (known.uuid, "1g.10gb")
    assert (first.fields["gi_cap"], first.fields["ci_cap"]) == (str(cap(0, 1)), str(cap(0, 1, 0)))
    assert (second.uuid, second.gpu_instance) == ("", 2)
    assert [mig_devices.is_in_instances(found.of(machines.gpu_address(index))) for index in (0, 1)] == [True, False]
    shutil.rmtree(proc / "driver/nvidia/capabilities")
    assert mig_devices.with_capabilities(plain, proc) is plain


@pytest.mark.parametrize("config", [mixed, single])
def test_without_nvml_no_instance_is_offered_nor_its_gpu_and_it_is_said(config: object, tmp_path: Path) -> None:
    proc = capabilities(machines.nvidia_proc(tmp_path, 2), [(0, 1, 0), (0, 2, 0)])
    server = Server(config(), count=2)  # type: ignore[operator]
    server.nvidia = mig_devices.with_capabilities(read(proc / "driver/nvidia"), proc)
    server.see(gpu(0), gpu(1))
    assert list(server.resources().values()) == [[machines.GPU_UUID.format(1).lower()]]
    (collision,) = server.collisions
    assert collision.hint == mig_devices.NO_IDENTITY
    assert len(collision.syspaths) == 2, "one message for all"


def test_rules_see_instances_as_udev_devices() -> None:
    devices = mig_devices.with_instances({gpu(0).syspath: gpu(0)}, facts([instance(0, 1)]))
    (device,) = (one for one in devices.values() if one.subsystem == "nvidia-mig")
    assert device.syspath == f"{gpu(0).syspath}/nvidia-mig/gi1-ci0"
    answer = explain(device, mixed().resources[1].match)
    assert answer.ok, str(answer)


@pytest.mark.parametrize("module", [pytest.param("tests.inventory.umockdev_mig", marks=needs_umockdev)])
def test_a_running_inventory_follows_instances(module: str) -> None:
    run_under_umockdev(module)
