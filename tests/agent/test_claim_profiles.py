"""Templates of claim profiles mean the same as those of resources."""

from __future__ import annotations

import json
import os

from drabridge.inventory.udev_scope import scope_of
from tests.support.agent_on_cluster import bridge, claim_pod
from tests.support.agent_process import DRIVER, RESOURCE
from tests.support.hardware import config, record, watching
from tests.support.waiting import until

CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: {RESOURCE}
  match: [{{subsystem: mem, sysname: "null"}}]
  id: ["{{sysname}}"]
  lanes: {{legacy: 0, dra: "*"}}
  claimConfig:
    defaultProfile: all
    profiles:
      all:
        env:
          BY_PROPERTY: "{{property:DEVNAME}}"
          BY_ATTRIBUTE: "{{attr:dev}}"
          BY_LINK: "{{link:subsystem}}"
          BY_FILE: "{{file:/proc/sys/kernel/ostype}}"
          PLAIN: "{{subsystem}} {{id}}"
        mounts: [{{hostPath: "/sys/dev/char/{{attr:dev}}", containerPath: "/dev-{{attr:dev}}"}}]
"""


async def test_a_profile_reads_properties_and_attributes_and_links_and_files_of_the_device() -> None:
    async with bridge(CONFIG) as (agent, cluster, _):
        await cluster.apply(claim_pod("p"))
        await until(lambda: list(agent.cdi.glob("*-claim-*.json")), 20, agent.text)
        (path,) = agent.cdi.glob("*-claim-*.json")
        edits = json.loads(path.read_text())["devices"][0]["containerEdits"]
        number = os.stat("/dev/null").st_rdev
        dev = f"{os.major(number)}:{os.minor(number)}"
        assert edits["env"] == [
            f"BY_ATTRIBUTE={dev}",
            "BY_FILE=Linux",
            "BY_LINK=mem",
            "BY_PROPERTY=/dev/null",
            "PLAIN=mem null",
        ]
        assert [(m["hostPath"], m["containerPath"]) for m in edits["mounts"]] == [
            (f"/sys/dev/char/{dev}", f"/dev-{dev}")
        ]


async def test_attributes_that_only_a_profile_uses_are_read() -> None:
    profile = {"env": {"A": "{parent.attr:serial}", "B": "{link:physfn}", "C": "{property:ID_SERIAL}"}}
    resource = {
        "name": "example.com/mem",
        "match": [{"subsystem": "mem", "sysname": "null"}],
        "id": ["{sysname}"],
        "claimConfig": {"profiles": {"p": profile}},
    }
    found = scope_of(config(resource))
    assert found.attributes == {"serial"}
    assert found.links == {"physfn"}


async def test_the_inventory_answers_for_devices_that_are_here_and_for_no_others() -> None:
    resource = {
        "name": "example.com/mem",
        "match": [{"subsystem": "mem", "sysname": "null"}],
        "id": ["{sysname}"],
        "env": {"NUMBER": "{attr:dev}"},
    }
    configuration = config(resource)
    (field,) = configuration.resources[0].env["NUMBER"].fields
    async with watching(configuration) as watched:
        lookup = watched.inventory.lookup("null")
        assert lookup is not None
        assert lookup(field) == "1:3"
        assert watched.inventory.lookup("zero") is None


def test_a_parents_attribute_is_the_nearest_ones() -> None:
    from drabridge.config.template import parse
    from drabridge.inventory.template_values import MatchedDevice
    from tests.support.hardware import MemoryHost

    hub = record("/sys/devices/usb1", attributes={"serial": "far"})
    stick = record("/sys/devices/usb1/1-2", above=hub, attributes={"serial": "near"})
    tty = record("/sys/devices/usb1/1-2/tty", "tty", above=stick)
    lookup = MatchedDevice(tty).lookup(MemoryHost())
    assert parse("{parent.attr:serial}").render(lookup) == "near"
