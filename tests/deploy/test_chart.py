"""The chart, by Helm itself: it lints, renders what it should for every value, and refuses values that mean nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import ABOUT, registry, repository
from deploy.helm import CHART, ROOT, HelmRefusedError, hooks, lint, manifests, one, templates
from drabridge import __version__
from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.system.port import parse_listen
from tests.deploy.renders import EVERYTHING, LEGACY_ONLY, NETWORK_POLICY, UDEV, VARIANTS, Json

EXAMPLES = sorted((ROOT / "deploy/examples").glob("*.yaml"))


def pod(values: Json | None = None) -> Json:
    spec: Json = one(manifests(values), "DaemonSet")["spec"]["template"]["spec"]
    return spec


def agent(values: Json | None = None) -> Json:
    (container,) = pod(values)["containers"]
    found: Json = container
    return found


def argument(values: Json | None, flag: str) -> str:
    (found,) = (text.partition("=")[2] for text in agent(values)["args"] if text.startswith(f"--{flag}="))
    return str(found)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_helm_lint_complains_about_nothing(values: Json) -> None:
    assert lint(values) == []


@pytest.mark.parametrize("version", ["v1.26.0", "v1.30.0", "v1.34.0", "v1.37.0"])
def test_it_lints_for_every_version_of_the_support_floor(version: str) -> None:
    assert lint(EVERYTHING, kube_version=version) == []


def test_the_linter_of_these_tests_does_complain(tmp_path: Path) -> None:
    broken = tmp_path / "drabridge"
    (broken / "templates").mkdir(parents=True)
    (broken / "Chart.yaml").write_text("apiVersion: v2\nname: drabridge\nversion: not-a-version\n")
    (broken / "templates" / "bad.yaml").write_text("kind: {{ .Values.a.b }}\n")
    assert {message["path"] for message in lint(chart=broken)} >= {"Chart.yaml"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"config": {"udevEvents": "sometimes"}}, "/config/udevEvents"),
        ({"config": {"driver": "No Domain"}}, "/config/driver"),
        (
            {"config": {"resources": [{"name": "requests.x/y", "match": [{"subsystem": "usb"}]}]}},
            "/config/resources/0/name",
        ),
        # Helm has turned 0403 into a number before anybody could read it as the four characters that were meant.
        ({"config": {"resources": [{"name": "a.b/c", "match": [{"attr": {"idVendor": 403}}]}]}}, "/config/resources/0"),
        ({"confg": {}}, "confg"),
        ({"kubelet": {"rootDir": "var/lib/kubelet"}}, "/kubelet/rootDir"),
        ({"image": {"digest": "sha256:short"}}, "/image/digest"),
        ({"podMonitor": {"enabled": True}, **UDEV}, "Set http.onNodeAddress: true"),
        ({**NETWORK_POLICY, **UDEV}, "does not apply to pods on the host's network"),
        ({"networkPolicy": {"apiServerPorts": [443]}, **UDEV}, "does not apply to pods on the host's network"),
        ({"podMonitor": {"enabled": True}}, "the NetworkPolicy lets nobody read metrics"),
        ({"maxUnavailable": 1}, "exactly one of the two is 0"),
        ({"maxSurge": "0%"}, "exactly one of the two is 0"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_the_place(values: Json, said: str) -> None:
    with pytest.raises(HelmRefusedError, match=re.escape(said)):
        manifests(values)


# --- what the agent may do on the node ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(VARIANTS) - {"everything"}))
def test_nothing_is_privileged_unless_a_value_asks_for_it(name: str) -> None:
    spec, container = pod(VARIANTS[name]), agent(VARIANTS[name])
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec.keys().isdisjoint({"hostPID", "hostIPC", "hostUsers", "shareProcessNamespace", "initContainers"})


def test_exceptions_are_values() -> None:
    assert agent(EVERYTHING)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "SYS_ADMIN"]}
    assert pod(EVERYTHING)["hostPID"] is True
    assert pod(EVERYTHING)["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_nvml_comes_with_nvidia_s_container_runtime() -> None:
    assert "runtimeClassName" not in pod()
    assert not [one for one in agent()["env"] if one["name"].startswith("NVIDIA")]
    values: Json = {"nvml": {"enabled": True}}
    assert pod(values)["runtimeClassName"] == "nvidia"
    assert {one["name"]: one["value"] for one in agent(values)["env"] if "value" in one} == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
    }
    assert "runtimeClassName" not in pod({"nvml": {"enabled": True, "runtimeClassName": ""}})
    assert {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"} in agent(EVERYTHING)["env"]
    with pytest.raises(HelmRefusedError, match="SYS_ADMIN"):
        manifests({"nvml": {"enabled": True, "mig": True}})


def test_a_pod_sees_the_hosts_files_only_where_the_configuration_looks_for_the_driver_s() -> None:
    assert "/" not in {host for host, _ in mounted().values()}
    seen = mounted({"config": {"nvidia": {"hostRoot": "/host"}}})
    assert seen["/host"] == ("/", False)


def mounted(values: Json | None = None) -> dict[str, tuple[str, bool]]:
    """Mount path to (host path, writable), without the ConfigMap."""
    spec = pod(values)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert len(volumes) == len(spec["volumes"])
    mounts = agent(values)["volumeMounts"]
    assert {mount["name"] for mount in mounts} == volumes.keys()
    return {
        mount["mountPath"]: (volumes[mount["name"]]["hostPath"]["path"], not mount.get("readOnly", False))
        for mount in mounts
        if "hostPath" in volumes[mount["name"]]
    }


@pytest.mark.parametrize(("version", "recursive"), [("1.29.0", None), ("1.30.0", "IfPossible"), ("", "IfPossible")])
def test_what_is_mounted_read_only_is_so_below_as_well(version: str, recursive: str | None) -> None:
    """/sys/fs/cgroup, /dev/shm and other file systems that are mounted below are writable otherwise."""
    mounts = agent({**EVERYTHING, "kubeVersion": version})["volumeMounts"]
    found = {one["mountPath"]: one.get("recursiveReadOnly") for one in mounts if one.get("readOnly")}
    found.pop("/etc/drabridge")
    assert found.keys() == {"/var/lib/kubelet/pod-resources", "/dev", "/sys", "/run/udev", "/opt/firmware"}
    assert set(found.values()) == {recursive}
    assert not [one for one in mounts if "recursiveReadOnly" in one and not one.get("readOnly")], "the API refuses it"


@pytest.mark.parametrize(
    ("values", "ingress", "noted"),
    [
        ({}, None, "nobody may scrape :9400/metrics"),
        (NETWORK_POLICY, [{"namespaceSelector": {}}], ""),
        ({"networkPolicy": {"enabled": False}}, "open", "every pod of the cluster can read :9400/metrics"),
        (UDEV, "open", ""),  # on 127.0.0.1
        ({**UDEV, "http": {"onNodeAddress": True}}, "open", "who reaches a node reads :9400/metrics"),
    ],
    ids=["defaults", "scrapers", "off", "host's network", "node's address"],
)
def test_only_named_scrapers_may_read_metrics(values: Json, ingress: Any, noted: str) -> None:
    policies = [obj["spec"] for obj in manifests(values) if obj["kind"] == "NetworkPolicy"]
    if ingress == "open":
        assert policies == []
    else:
        (policy,) = policies
        assert policy["policyTypes"] == ["Ingress"]
        assert [rule["from"] for rule in policy.get("ingress", ())] == ([ingress] if ingress else [])
    notes = templates(values)["NOTES.txt"]
    assert (":9400/metrics" in notes) is bool(noted)
    assert noted in notes


def test_the_defaults_mount_few_directories_at_their_own_paths() -> None:
    found = mounted()
    assert all(path == host for path, (host, _) in found.items()), "kubelet opens our sockets by the host's paths"
    root = "/var/lib/kubelet"
    assert {path: writable for path, (_, writable) in found.items()} == {
        f"{root}/device-plugins": True,
        f"{root}/plugins_registry": True,
        f"{root}/plugins/drabridge.example.com": True,
        f"{root}/pod-resources": False,
        "/var/run/cdi": True,
        "/dev": False,
        "/sys": False,
        "/run/udev": False,
    }
    types = {volume["hostPath"]["type"] for volume in pod()["volumes"] if "hostPath" in volume}
    assert types == {"Directory", "DirectoryOrCreate"}, "a socket's inode changes: mount what it lies in"


@pytest.mark.parametrize(
    ("cdi_dir", "more", "expected"),
    [
        ("/var/run/cdi", [], {"/var/run/cdi": True, "/etc/cdi": False}),
        ("/etc/cdi", [], {"/etc/cdi": True, "/var/run/cdi": False}),
        ("/opt/cdi", [], {"/opt/cdi": True, "/etc/cdi": False, "/var/run/cdi": False}),
        ("/var/run/cdi", ["/etc/cdi"], {"/var/run/cdi": True, "/etc/cdi": False}),  # each once
    ],
)
def test_other_programs_cdi_files_are_mounted_where_they_are_used(
    cdi_dir: str, more: list[str], expected: dict[str, bool]
) -> None:
    resource = {"name": "nvidia.com/gpu", "match": [{"subsystem": "pci"}]}
    values = {"cdiDir": cdi_dir, "extraHostPaths": more, "config": {"resources": [resource]}}
    assert {path for path in mounted(values) if "cdi" in path} == {cdi_dir, *more}
    values["config"] = {"resources": [resource, {**resource, "name": "a.com/b", "cdiDevices": ["a.com/b={sysname}"]}]}
    assert {path: writable for path, (_, writable) in mounted(values).items() if "cdi" in path} == expected


def test_cdi_folders_are_those_of_the_nodes_runtime() -> None:
    talos = ["/var/cdi/static", "/var/cdi/dynamic"]
    resource = {"name": "a.com/b", "match": [{"subsystem": "pci"}], "cdiDevices": ["a.com/b={sysname}"]}
    values = {"cdiDir": talos[1], "cdiSpecDirs": talos, "config": {"resources": [resource]}}
    found = {path: writable for path, (_, writable) in mounted(values).items() if "cdi" in path}
    assert found == {talos[0]: False, talos[1]: True}
    arguments = pod(values)["containers"][0]["args"]
    at = arguments.index("--cdi-spec-dirs")
    assert arguments[at + 1 : at + 3] == talos


@pytest.mark.parametrize(("events", "host"), [("kernel", False), ("udev", True), ("auto", True), (None, True)], ids=str)
def test_the_hosts_network_comes_with_the_event_source_that_needs_it_and_udevs_database_always(
    events: str | None, host: bool
) -> None:
    values = {"config": {"udevEvents": events}}  # null removes the key: the agent's own default then
    assert pod(values).get("hostNetwork", False) is host
    assert mounted(values)["/run/udev"] == ("/run/udev", False)


def test_another_kubelet_directory_moves_everything() -> None:
    root = "/var/lib/k0s/kubelet"
    found = mounted({"kubelet": {"rootDir": root, "devicePluginDir": "/var/lib/kubelet/device-plugins"}})
    assert {path for path in found if "kubelet" in path} == {
        "/var/lib/kubelet/device-plugins",
        f"{root}/plugins_registry",
        f"{root}/plugins/drabridge.example.com",
        f"{root}/pod-resources",
    }
    values = {"kubelet": {"rootDir": root}}
    assert argument(values, "kubelet-dir") == root
    assert argument(values, "device-plugin-dir") == f"{root}/device-plugins"


# --- life cycle -----------------------------------------------------------------------------------------------------


def test_a_new_configuration_restarts_no_pod() -> None:
    changed = {"config": {"resyncSeconds": 77}}
    assert one(manifests(), "DaemonSet") == one(manifests(changed), "DaemonSet")
    assert one(manifests(), "ConfigMap") != one(manifests(changed), "ConfigMap")
    config = next(mount for mount in agent()["volumeMounts"] if mount["name"] == "config")
    assert "subPath" not in config, "a file mounted by subPath never changes"


@pytest.mark.parametrize(
    ("values", "listen", "probed"),
    [
        ({}, ":9400", None),
        (UDEV, "127.0.0.1:9400", "127.0.0.1"),
        ({**UDEV, "http": {"onNodeAddress": True, "port": 9500}}, "[$(POD_IP)]:9500", None),
    ],
)
def test_kubelets_probes_reach_where_the_agent_listens(values: Json, listen: str, probed: str | None) -> None:
    """Kubelet probes the pod's address unless ``host`` says otherwise; 127.0.0.1 is the node's to it."""
    assert argument(values, "listen") == listen
    container = agent(values)
    port = int(listen.rpartition(":")[2])
    paths = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for probe, path in paths.items():
        assert container[probe]["httpGet"] == {"path": path, "port": port} | ({"host": probed} if probed else {})
    names = {variable["name"] for variable in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", listen)) <= names
    for address in ("10.0.0.7", "fd00::7"):
        assert parse_listen(listen.replace("$(POD_IP)", address))[1] == port


@pytest.mark.parametrize(
    ("values", "flags"),
    [({}, []), (UDEV, ["--page=off"]), ({**UDEV, "http": {"pageOnHostNetwork": True}}, [])],
)
def test_on_the_hosts_network_the_page_is_off_unless_asked_for(values: Json, flags: list[str]) -> None:
    assert [text for text in agent(values)["args"] if text.startswith("--page")] == flags
    notes = templates(values, name="drabridge", namespace="hw")["NOTES.txt"]
    assert ("kubectl -n hw port-forward daemonset/drabridge 9400" in notes) is (not flags)


def test_without_claims_no_api_server_is_needed() -> None:
    kinds = {obj["kind"] for obj in manifests(LEGACY_ONLY)}
    assert kinds == {"ConfigMap", "DaemonSet", "ServiceAccount", "NetworkPolicy"}
    policy = one(manifests(LEGACY_ONLY), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy, "it calls nobody"
    assert pod(LEGACY_ONLY)["automountServiceAccountToken"] is False
    assert pod()["automountServiceAccountToken"] is True


# --- configuration --------------------------------------------------------------------------------------------------


def carried(values: Json) -> Config:
    return load(str(one(manifests(values), "ConfigMap")["data"]["config.yaml"]))


def test_the_agent_reads_the_default_configuration() -> None:
    config = carried({})
    assert [resource.name for resource in config.resources] == ["example.com/kvm"]
    assert not config.wants_dra


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_arrives_unchanged_through_helm(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    preset = yaml.safe_load((CHART / "values.yaml").read_text())["config"]
    values = {**dict.fromkeys(preset), **values}  # null removes the chart's own keys
    if "fabric" not in values:
        assert carried({"config": values}) == load(path)
    else:  # the coordinator that publishes these devices is in the configuration, too
        found = carried({"config": values, "coordinator": {"enabled": True}})
        assert (found.fabric, found.resources) == (load(path).fabric, load(path).resources)


def test_an_agent_that_binds_drivers_may_write_to_sysfs_and_sees_who_has_a_device_open() -> None:
    plain = {"capabilities": ["NET_ADMIN"]}
    config = yaml.safe_load((ROOT / "deploy/examples/kubevirt/config.yaml").read_text())
    for values, binds in ((plain, False), ({**plain, "config": config}, True)):
        (sys,) = (one for one in agent(values)["volumeMounts"] if one["name"] == "sys")
        assert ("readOnly" not in sys) is binds
        assert pod(values).get("hostPID", False) is binds
        added = agent(values)["securityContext"]["capabilities"]["add"]
        assert added == ["NET_ADMIN", *(["SYS_PTRACE"] if binds else [])]


def test_each_resource_with_a_class_has_one_that_selects_it_alone() -> None:
    device_class = one(manifests(EVERYTHING), "DeviceClass")
    assert device_class["metadata"]["name"] == "kvm"
    assert device_class["spec"]["extendedResourceName"] == "example.com/kvm-by-claim"
    (selector,) = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        'device.driver == "drabridge.example.com" && '
        'device.attributes["drabridge.example.com"].resource == "example.com/kvm"'
    )
    assert not [obj for obj in manifests() if obj["kind"] == "DeviceClass"]


def test_nvidia_s_classes_select_by_nvidia_s_expressions() -> None:
    """deployments/helm of kubernetes-sigs/dra-driver-nvidia-gpu; claims of both drivers' nodes find devices by them."""
    path = next(path for path in EXAMPLES if path.stem == "nvidia-mig")
    found = manifests({"config": yaml.safe_load(path.read_text())})
    classes = {obj["metadata"]["name"]: obj["spec"]["selectors"] for obj in found if obj["kind"] == "DeviceClass"}
    driver, attributes = 'device.driver == "gpu.nvidia.com"', 'device.attributes["gpu.nvidia.com"]'
    assert classes == {
        f"{kind}.nvidia.com": [{"cel": {"expression": f'{driver} && {attributes}.type == "{kind}"'}}]
        for kind in ("gpu", "mig")
    }


def test_names_follow_the_release_and_the_service_account() -> None:
    objects = manifests({"serviceAccount": {"create": False, "name": "mine"}}, name="gpus", namespace="hw")
    assert {obj["kind"] for obj in objects}.isdisjoint({"ServiceAccount"})
    assert one(objects, "DaemonSet")["metadata"] | {"labels": None} == {
        "name": "gpus-drabridge",
        "namespace": "hw",
        "labels": None,
    }
    (subject,) = one(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "mine", "namespace": "hw"}
    policies = [obj for obj in objects if obj["kind"] == "ValidatingAdmissionPolicy"]
    assert {condition["expression"] for obj in policies for condition in obj["spec"]["matchConditions"]} == {
        'request.userInfo.username == "system:serviceaccount:hw:mine"'
    }


@pytest.mark.parametrize(
    "values", [EVERYTHING, {"coordinator": {"enabled": True}}, NETWORK_POLICY], ids=["all", "coordinator", "network"]
)
def test_another_namespace_is_as_if_the_release_were_in_it(values: Json) -> None:
    moved = {**values, "namespaceOverride": "hw"}
    assert manifests(moved, namespace="x") == manifests(values, namespace="hw")
    assert hooks(moved, namespace="x") == hooks(values, namespace="hw")
    assert hooks(moved, namespace="x", when="test") == hooks(values, namespace="hw", when="test")
    said, there = templates(moved, namespace="x")["NOTES.txt"], templates(values, namespace="hw")["NOTES.txt"]
    assert said.replace("--namespace x", "--namespace hw") == there  # Helm's own command is about the release's


def test_what_is_added_to_the_pod_stands_beside_what_the_chart_sets() -> None:
    plain, added = agent({}), agent(EVERYTHING)
    assert added["env"][-1] == EVERYTHING["extraEnv"][0]
    assert added["securityContext"].items() >= {"readOnlyRootFilesystem": True, "procMount": "Default"}.items()
    assert plain["securityContext"].keys() | {"procMount"} == added["securityContext"].keys()
    assert pod(EVERYTHING)["securityContext"].items() >= pod({})["securityContext"].items()
    assert pod(EVERYTHING)["securityContext"]["supplementalGroups"] == [44]


def test_agents_are_replaced_by_hand_where_that_is_wanted() -> None:
    strategy = one(manifests({"updateStrategy": "OnDelete"}), "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "OnDelete"}


@pytest.mark.parametrize(
    "values",
    [
        {"securityContext": {"readOnlyRootFilesystem": False}},
        {"securityContext": {"privileged": True}},
        {"podSecurityContext": {"runAsUser": 1}},
        {"updateStrategy": "Recreate"},
        {"namespaceOverride": "A b"},
    ],
)
def test_what_the_chart_decides_cannot_be_written_over(values: Json) -> None:
    with pytest.raises(HelmRefusedError):
        manifests(values)


def test_every_address_of_the_project_is_the_one_of_the_package() -> None:
    about = yaml.safe_load(ABOUT.read_text())
    links = yaml.safe_load(about["annotations"]["artifacthub.io/links"])
    found = [about["home"], about["icon"], *about["sources"], *(one["url"] for one in (*about["maintainers"], *links))]
    assert all(url.startswith(repository()) for url in found)
    for url in found:
        path = url.removeprefix(repository()).removeprefix("/blob/main").removeprefix("/raw/main")
        assert (ROOT / path.strip("/")).exists(), url


@pytest.mark.parametrize(
    ("lanes", "asked"),
    [
        (({}, {}), "a.test/0"),
        (({"legacy": 0, "dra": "*"}, {"legacy": "*", "dra": 0}), "a.test/1"),
        (({"shared": "*"}, {}), "a.test/0"),
        (({"legacy": 0, "dra": 1}, {"legacy": 0, "dra": 1}), None),
    ],
)
def test_helm_test_asks_for_what_pods_may_have_by_limits(lanes: tuple[Json, ...], asked: str | None) -> None:
    """A test pod that asks for a resource whose devices are all for claims would wait for ever."""
    kvm = {"match": [{"subsystem": "misc", "sysname": "kvm"}], "deviceClass": {"name": "kvm"}}
    resources = [kvm | {"name": f"a.test/{n}"} | ({"lanes": one} if one else {}) for n, one in enumerate(lanes)]
    pods = hooks({"config": {"resources": resources}}, when="test")
    assert [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods] == ([{asked: 1}] if asked else [])
    (chosen,) = hooks({"config": {"resources": resources}, "test": {"resource": "a.test/other"}}, when="test")
    assert chosen["spec"]["containers"][0]["resources"]["limits"] == {"a.test/other": 1}


def test_alerts_and_dashboards_are_the_files_beside_the_chart() -> None:
    labels = {"release": "prometheus"}
    values = {"prometheusRule": {"enabled": True, "labels": labels}, "dashboards": {"enabled": True}}
    objects = manifests(values)
    rule = one(objects, "PrometheusRule")
    assert labels.items() <= rule["metadata"]["labels"].items()
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/dashboards/drabridge-alerts.yaml").read_text())
    (board,) = (each for each in objects if "grafana_dashboard" in each["metadata"].get("labels", {}))
    assert board["data"]["drabridge-grafana.json"] == (ROOT / "deploy/dashboards/drabridge-grafana.json").read_text()


def test_without_values_it_installs_what_a_machine_has_and_the_notes_say_so() -> None:
    """Whoever tries the chart sees a device, and is told that it is no placeholder."""
    assert "every node that has /dev/kvm offers example.com/kvm" in templates()["NOTES.txt"]
    other = {"name": "a.test/fuse", "match": [{"subsystem": "misc", "sysname": "fuse"}]}
    assert "to try it with" not in templates({"config": {"resources": [other]}})["NOTES.txt"]
    (test,) = hooks(when="test")
    assert test["spec"]["containers"][0]["resources"]["limits"] == {"example.com/kvm": 1}
    assert one(manifests(), "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["image"].startswith(registry())


def test_the_readme_explains_every_value() -> None:
    explained = set(re.findall(r"^\| `([A-Za-z.]+)` ", (CHART / "README.md").read_text(), re.MULTILINE))
    properties = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    wanted = {
        f"{name}.{key}" if name != "config" else name
        for name, about in properties.items()
        for key in about.get("properties", ("",))
        if name != "global"
    }
    named = explained | {name.rpartition(".")[0] for name in explained}
    assert {one.removesuffix(".") for one in wanted} <= named


def test_krew_s_manifest_is_of_this_version_and_says_what_is_missing() -> None:
    text = (ROOT / "deploy/krew/drabridge.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    (platform,) = spec["platforms"]
    assert (spec["version"], spec["homepage"]) == (f"v{__version__}", repository())
    assert platform["uri"].startswith(f"{repository()}/releases/download/v{__version__}/")
    assert set(platform["sha256"]) == {"0"}
    assert "A template: nothing is published yet" in text
    assert f"version={__version__}\n" in (ROOT / "deploy/krew" / platform["bin"]).read_text()


def test_the_notes_name_the_three_commands_to_look_at_first() -> None:
    notes = templates(EVERYTHING, name="gpus", namespace="hw")["NOTES.txt"]
    assert re.findall(r"^(\d)\.", notes, re.MULTILINE) == ["1", "2", "3"]
    assert "kubectl -n hw rollout status daemonset/gpus-drabridge" in notes
    assert "-- drabridge status\n" in notes
    elsewhere = templates({"kubelet": {"rootDir": "/var/lib/k0s/kubelet"}})["NOTES.txt"]
    assert "-- drabridge status --socket /var/lib/k0s/kubelet/plugins/drabridge.example.com/control.sock" in elsewhere
    assert "kubectl label namespace hw pod-security.kubernetes.io/enforce=privileged" in notes
    assert "example.com/kvm" in notes
    assert "host's network" in notes
    (resource,) = EVERYTHING["config"]["resources"]
    unclassed = {"config": {"resources": [{key: resource[key] for key in resource.keys() - {"deviceClass"}}]}}
    assert "has a dra lane and no deviceClass" in templates(unclassed)["NOTES.txt"]
    assert "has a dra lane and no deviceClass" not in notes


@pytest.mark.parametrize(("version", "policies"), [("v1.26.0", 0), ("v1.29.9-gke.1", 0), ("1.30", 3), ("v1.36.2", 3)])
def test_the_notes_say_where_policies_are_not_possible(version: str, policies: int) -> None:
    """A release of before 1.30 has none, and nobody would miss them."""
    values: Json = {"kubeVersion": version}
    assert sum(obj["kind"] == "ValidatingAdmissionPolicy" for obj in manifests(values)) == policies
    warned = "has no ValidatingAdmissionPolicy" in templates(values)["NOTES.txt"]
    assert warned is (not policies)
    assert "has no Validating" not in templates({**values, "admissionPolicy": {"create": False}})["NOTES.txt"]
    assert "has no Validating" not in templates({**values, **LEGACY_ONLY})["NOTES.txt"]


def test_one_pool_for_all_nodes_is_warned_of() -> None:
    assert "one name for every node" in templates({"config": {"dra": {"pool": "rack"}}})["NOTES.txt"]
    assert "one name for every node" not in templates()["NOTES.txt"]


# --- upgrades -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_a_successor_can_be_beside_the_agent_that_it_replaces(values: Json) -> None:
    """A pod on the host's network has each of its ports on the node, and no second one there can have them."""
    daemon_set = one(manifests(values), "DaemonSet")["spec"]
    rolling = daemon_set["updateStrategy"]["rollingUpdate"]
    assert rolling["maxUnavailable"] == 0
    assert rolling["maxSurge"] not in (0, "0%")
    on_host = daemon_set["template"]["spec"].get("hostNetwork", False)
    ports = agent(values).get("ports", [])
    assert not any("hostPort" in port for port in ports)
    assert not (on_host and ports)
    assert daemon_set.get("minReadySeconds", 0) >= (5 if on_host else 0)  # there its probes reach the other agent


def test_an_upgrade_with_a_gap_is_a_value() -> None:
    values = {"maxSurge": 0, "maxUnavailable": "20%"}
    assert one(manifests(values), "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"] == values


def test_on_the_host_s_network_the_scraped_address_is_the_pod_s_with_the_port() -> None:
    (endpoint,) = one(manifests(EVERYTHING), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert "port" not in endpoint
    found = {}
    for address in ("10.1.2.3", "fd00::7"):
        for row in endpoint["relabelings"]:
            if row["targetLabel"] == "__address__" and (match := re.fullmatch(row["regex"], address)):
                found[address] = row["replacement"].replace("$1", match[1])
    assert found == {"10.1.2.3": "10.1.2.3:9400", "fd00::7": "[fd00::7]:9400"}
