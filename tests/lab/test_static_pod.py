"""A node of ``tests.node`` runs a pod on a host that has control groups of version 2 alone, as the guest has."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.gpu.pack import lay_out
from tests.lab.guest import Guest
from tests.lab.image import make_disk
from tests.node.cluster import PACKAGES
from tests.node.releases import DEFAULT

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not shutil.which("go"), reason="builds kubelet: install Go"),
    pytest.mark.skipif(not all(map(shutil.which, PACKAGES)), reason=f"apt-get install {' '.join(PACKAGES.values())}"),
]
PROGRAMS = Path("/programs")
SECONDS = 1800.0


def test_a_node_runs_a_pod_where_there_are_only_control_groups_of_version_2() -> None:
    with tempfile.TemporaryDirectory(prefix="lab-pod", dir="/var/tmp") as name:
        folder = Path(name)
        lay_out(folder / "cache/drabridge/node", DEFAULT, {})
        make_disk(folder / "programs.img", "640M", folder / "cache")
        with Guest(devices=(), spare=(), more=folder / "programs.img") as guest:
            guest.run(
                f"touch /etc/hosts && mkdir {PROGRAMS} && mount -o ro /dev/disk/by-id/virtio-lab-more {PROGRAMS}",
                check=True,
            )
            path = f"/usr/sbin:/usr/bin:/sbin:/bin:{PROGRAMS}/drabridge/node/tools"
            variables = {"XDG_CACHE_HOME": str(PROGRAMS), "PATH": path}
            words = ["python3", "-m", "tests.lab.inside.static_pod"]
            done = guest.run(words, env=variables, seconds=SECONDS)
            assert done.rc == 0, done.out
            *said, left = done.out.splitlines()
            assert said[-1:] == ["over"], done.out
            assert str(64 << 20) in said  # memory.max of the container's own group
            assert "50000 100000" in said
            assert left == "left:", "the machine's control groups are still there"
