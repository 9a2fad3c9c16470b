"""What a cluster lacks is told: by ``status``, ``migrate report`` and ``migrate switch``, in the table's sentence.

Each feature on a cluster without it, and on one with it. The agent serves everything else meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from drabridge.kube import features
from drabridge.kube.features import FEATURES, FeatureState
from drabridge.offers.slices import Feature
from drabridge.sim.cluster import SimCluster
from drabridge.wire import pluginregistration_pb2 as registration
from tests.migrate.cluster_objects import migrate, namespace, node, parsed, pod, serving
from tests.support.agent_on_cluster import bridge, claim_pod, limits_pod
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, drabridge
from tests.support.dra_node import a_node
from tests.support.waiting import until

SLICES = (Feature.LEASES, Feature.TAINTS, Feature.SHARING, Feature.PARTITIONS)
OLD, NEW = "1.34", "1.36"  # all that is asked of the API server is off, or on, by default
CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1, quiesceSeconds: 0.5}}
resources:
- name: {RESOURCE}
  match: [{{subsystem: mem, sysname: [zero, "null"]}}]
  id: ["{{sysname}}"]
  lanes: {{legacy: 1, dra: 1}}
"""
USING = {  # what is added to the configuration to make use of it
    Feature.LEASES: f"""\
- name: {RESOURCE}-leased
  match: [{{subsystem: mem, sysname: full}}]
  lanes: {{shared: "*"}}
""",
    Feature.SHARING: f"""\
- name: {RESOURCE}-shared
  match: [{{subsystem: mem, sysname: full}}]
  lanes: {{legacy: 0, dra: "*"}}
  sharing: {{allowMultipleAllocations: true}}
""",
    Feature.PARTITIONS: f"""\
- name: {RESOURCE}-part
  match: [{{subsystem: mem, sysname: full}}]
  lanes: {{legacy: 0, dra: "*"}}
  partition: {{of: {RESOURCE}}}
""",
    Feature.TAINTS: "",  # every dra lane may have to taint a device
}


def one_line(text: str) -> str:
    """What is wrapped for a terminal, as one line."""
    return " ".join(text.split())


async def states(agent: AgentProcess) -> dict[str, str]:
    return {one["name"]: one["state"] for one in (await agent.status())["features"]}


async def serves_both_sides(agent: AgentProcess, cluster: SimCluster) -> None:
    await cluster.apply(claim_pod("claim"))
    await cluster.apply(limits_pod("limits"))
    await cluster.wait_pod("claim")
    await cluster.wait_pod("limits")


async def told(agent: AgentProcess, *words: str) -> str:
    _, text = await drabridge(agent, "status", *words)
    return one_line(text)


@pytest.mark.parametrize("release", [OLD, NEW])
async def test_what_an_api_server_lacks_is_told_where_the_configuration_needs_it(release: str) -> None:
    """One node uses all of it, the other nothing but claims: it is told of taints alone, and the rest on demand."""
    lacks = release == OLD
    for config, used in (
        (CONFIG + USING[Feature.LEASES], {Feature.LEASES, Feature.TAINTS}),
        (CONFIG, {Feature.TAINTS}),
    ):
        async with bridge(config, release=release) as (agent, cluster, _):
            await until(partial(known, agent, *SLICES), 10, agent.text)
            await serves_both_sides(agent, cluster)
            told_late = (features.DEVICE_STATUS, features.CLAIMS_IN_LIST, features.GET_OF_ONE_POD)
            await until(partial(known, agent, *told_late), 20, agent.text)
            found = await states(agent)
            assert {found[name] for name in SLICES} == {FeatureState.MISSING if lacks else FeatureState.THERE}
            assert {found[name] for name in told_late} == {FeatureState.THERE}
            short, wide = await told(agent), await told(agent, "-o", "wide")
            for name in SLICES:
                sentence = FEATURES[name].sentence
                assert (sentence in short) is (lacks and name in used), name
                assert (sentence in wide) is lacks, name
            assert (await agent.status())["ready"]


async def known(agent: AgentProcess, *names: str) -> bool:
    found = await states(agent)
    return all(found[name] != FeatureState.UNKNOWN for name in names)


@pytest.mark.parametrize("name", [Feature.SHARING, Feature.PARTITIONS])
async def test_a_configuration_that_uses_a_feature_is_told_that_it_is_missing(name: Feature) -> None:
    async with bridge(CONFIG + USING[name], release=OLD) as (agent, _, _):
        await until(lambda: known(agent, name), 10, agent.text)
        rows = {one["name"]: one for one in (await agent.status())["features"]}
        assert {one for one in SLICES if rows[one]["needed"]} == {name, Feature.TAINTS}
        assert FEATURES[name].sentence in await told(agent)


async def test_the_state_of_devices_in_claims() -> None:
    """The server's answer to the first status shows that it is missing; the claim is served."""
    async with bridge(CONFIG, gates={features.DEVICE_STATUS: False}) as (agent, cluster, _):
        assert (await states(agent))[features.DEVICE_STATUS] == FeatureState.UNKNOWN
        await serves_both_sides(agent, cluster)
        await until(lambda: known(agent, features.DEVICE_STATUS), 10, agent.text)
        assert (await states(agent))[features.DEVICE_STATUS] == FeatureState.MISSING
        assert FEATURES[features.DEVICE_STATUS].sentence in await told(agent)


async def test_what_an_older_kubelet_does_not_tell() -> None:
    names = (features.CLAIMS_IN_LIST, features.GET_OF_ONE_POD)
    async with bridge(CONFIG, kubelet_version="1.33") as (agent, cluster, _):
        await serves_both_sides(agent, cluster)
        await until(lambda: known(agent, *names), 20, agent.text)
        found = await states(agent)
        assert {found[name] for name in names} == {FeatureState.MISSING}
        assert FEATURES[features.CLAIMS_IN_LIST].sentence in await told(agent)
        assert FEATURES[features.GET_OF_ONE_POD].sentence in await told(agent, "-o", "wide")


@pytest.mark.parametrize("opens", [False, True])
async def test_a_kubelet_that_asks_for_no_health(opens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet with the gate off registers the plugin, and never opens the stream."""
    from drabridge.dra import driver

    monkeypatch.setattr(driver, "HEALTH_STREAM_SECONDS", 0.2)
    async with a_node() as one:
        await one.until_published(["gpu-0", "gpu-1", "gpu-2", "gpu-3"])
        service = one.driver._registration
        assert one.driver.features[features.HEALTH_IN_PODS] is FeatureState.UNKNOWN, "not registered"
        if opens:
            from drabridge.wire import health_v1_pb2, health_v1_pb2_grpc

            stub = health_v1_pb2_grpc.DRAResourceHealthStub(one._channel)
            async for _ in stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest()):
                break
        await service.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True), None)  # type: ignore[arg-type]
        assert one.driver.features[features.HEALTH_IN_PODS] is (FeatureState.THERE if opens else FeatureState.UNKNOWN)
        await asyncio.sleep(0.3)
        assert one.driver.features[features.HEALTH_IN_PODS] is FeatureState.of(opens)


# --- the commands that ask the cluster themselves -------------------------------------------------------------------


def cluster_of(kubeconfig: Path) -> tuple[str, str]:
    return "--kubeconfig", str(kubeconfig)


@pytest.mark.parametrize("release", [OLD, NEW])
async def test_the_report_tells_what_the_cluster_lacks(release: str) -> None:
    asked = (features.POLICIES, features.EXTENDED_NAMES, *SLICES)
    lacks = release == OLD
    async with serving(node(), pod(), release=release) as (api, kubeconfig):
        before = api.objects.store.revision
        _, text, _ = await migrate("report", *cluster_of(kubeconfig))
        _, page, _ = await migrate("report", *cluster_of(kubeconfig), "-o", "html")
        _, out, _ = await migrate("report", *cluster_of(kubeconfig), "-o", "json")
        assert api.objects.store.revision == before, "nothing is written"
    found = {one["name"]: one for one in parsed(out)["features"]}
    for name in asked:
        sentence = FEATURES[name].sentence
        assert (sentence in one_line(text)) is lacks, name
        assert (sentence in page) is lacks, name
        assert (found[name]["state"], found[name]["sentence"]) == (("missing", sentence) if lacks else ("there", "")), (
            name
        )
    assert found[features.HEALTH_IN_PODS]["state"] == "unknown", "a kubelet's, and none is asked"
    assert "not known" not in text


async def test_what_the_report_may_not_ask_is_not_said_to_be_missing() -> None:
    async with serving(node(), pod(), release=OLD) as (api, kubeconfig):
        api.faults.fail(2, 403, verb="create")
        code, text, _ = await migrate("report", *cluster_of(kubeconfig))
    assert code == 0
    assert "not known, because a dry run of a DeviceClass and a dry run of a ResourceSlice was not allowed" in text
    assert FEATURES[Feature.TAINTS].sentence not in text
    assert FEATURES[features.POLICIES].sentence in text, "discovery is everybody's"


async def test_a_switch_uses_the_beta_version_where_it_is_on() -> None:
    gates = {features.POLICIES: True}
    async with serving(namespace(switched=False), release=OLD, gates=gates) as (_, kubeconfig):
        code, text, error = await migrate("switch", *cluster_of(kubeconfig))
        _, report, _ = await migrate("report", *cluster_of(kubeconfig))
    assert (code, error) == (0, "")
    assert "No namespace is switched" in text
    assert FEATURES[features.POLICIES].sentence not in one_line(report)


@pytest.mark.parametrize("release", [OLD, NEW])
async def test_a_switch_without_admission_policies_says_so(release: str) -> None:
    async with serving(namespace(switched=False), release=release) as (_, kubeconfig):
        code, text, error = await migrate("switch", *cluster_of(kubeconfig))
    if release == OLD:
        assert code != 0
        assert FEATURES[features.POLICIES].sentence in one_line(error)
    else:
        assert (code, error) == (0, "")
        assert "No namespace is switched" in text


@pytest.mark.parametrize("there", [False, True])
async def test_a_switch_that_finds_no_class_says_that_classes_keep_no_names(there: bool) -> None:
    gates = {features.EXTENDED_NAMES: there}
    async with serving(namespace(switched=False), node(), pod(), gates=gates) as (_, kubeconfig):
        code, _, error = await migrate("switch", "team-a", "--to", "claims", *cluster_of(kubeconfig))
    assert code != 0
    assert "whose DeviceClass is known" in error
    assert (FEATURES[features.EXTENDED_NAMES].sentence in one_line(error)) is not there


def test_every_sentence_says_what_is_missing_what_gives_it_and_what_that_means() -> None:
    for name, row in FEATURES.items():
        assert row.name == name
        assert row.sentence == f"{row.lacks} ({row.given_by}): {row.without}"
        assert "Kubernetes 1." in row.given_by
        assert len(row.sentence) < 300
        assert json.dumps(row.sentence).isascii()
