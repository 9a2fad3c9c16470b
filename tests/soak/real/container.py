"""What a container of the soak does: lock every device that it has for its life, and write that down.

Locks are ``flock`` on files of the host that are named after the devices, taken without waiting: two containers with
one device are seen whatever the API, kubelet and the agent say. Containers with one shared claim have the lock
together; one with another claim does not get it. Every container appends its lines to one journal beside the locks::

    1779465600 has limits-1 6a1f... zero        1779465609 ends limits-1 6a1f... -
    1779465601 taken claim-2 77b0... zero       1779465602 broken claim-3 c0de... zero
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

TAKEN = 42
"""Exit status: another container has the device's lock."""
BROKEN = 43
"""Exit status: the lock could not be tried (no ``flock``, no directory). That says nothing of the device."""
NOTHING = 44
"""Exit status: the container has no device at all."""
DEVICES = "/dev/soak-"  # and the device's name: the nodes that the agent's configuration makes
LOCKS = "/locks"
JOURNAL = "journal"
MUTEX = ".mutex"
GRACE_SECONDS = 5
STUBBORN_GRACE_SECONDS = 10

# A lock that is taken makes both busybox's and util-linux' flock end with 1 and say nothing; every other failure says
# something or ends otherwise. File descriptors have one digit: that is all that ash and dash take.
_PROGRAM = """\
say() {{ echo "$(date +%s) $1 $POD $POD_UID $2" >>{locks}/{journal}; }}
try() {{
  words=$(flock -n "$1" "$2" 2>&1); code=$?
  [ $code != 0 ] || return 0
  [ "$code$words" = 1 ] || {{ echo "flock: $code $words"; say broken "$3"; exit {broken}; }}
  say taken "$3"; exit {taken}
}}
trap '{on_term}' TERM
fd=9
for path in {devices}*; do
  device=${{path#{devices}}}
  [ "$device" != "*" ] || {{ say nothing -; exit {nothing}; }}
  eval "exec $fd>{locks}/$device" || {{ say broken "$device"; exit {broken}; }}
  if [ -z "{shared}" ]; then
    try -x $fd "$device"
  else
    try -s $fd "$device"
    fd=$((fd - 1)); eval "exec $fd>{locks}/$device.{shared}"
    exec 3>{locks}/{mutex}; flock 3
    flock -s $fd
    for other in {locks}/"$device".*; do
      [ "$other" = "{locks}/$device.{shared}" ] || {{ exec 4>"$other"; try -x 4 "$device"; exec 4>&-; }}
    done
    exec 3>&-
  fi
  say has "$device"
  fd=$((fd - 1))
done
sleep {seconds} & wait
say ends -
"""


def program(
    seconds: float, *, shared: str = "", stubborn: bool = False, locks: str = LOCKS, devices: str = DEVICES
) -> str:
    """The shell script. ``shared``: name of the claim whose containers use its devices together; ``stubborn``: ignores
    TERM, so that only the end of its grace ends it.
    """
    return _PROGRAM.format(
        locks=locks,
        devices=devices,
        journal=JOURNAL,
        mutex=MUTEX,
        taken=TAKEN,
        broken=BROKEN,
        nothing=NOTHING,
        shared=shared,
        seconds=f"{seconds:.0f}",
        on_term="" if stubborn else "say ends -; exit 0",
    )


def container(image: str, script: str, resources: Json, *, name: str = "main") -> Json:
    """A container that runs the script with these resources."""
    fields = {"POD": "metadata.name", "POD_UID": "metadata.uid"}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "env": [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()],
        "resources": resources,
        "volumeMounts": [{"name": "locks", "mountPath": LOCKS}],
    }


def pod(name: str, namespace: str, node: str, locks: str, containers: list[Json], **more: Any) -> Json:
    """A pod on the node. ``locks`` is a directory of the host; ``more`` goes into the spec."""
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": containers,
        "volumes": [{"name": "locks", "hostPath": {"path": locks, "type": "Directory"}}],
        **more,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
