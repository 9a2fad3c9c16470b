"""The image: its locks, what is in it, and that the agent lives in it as the chart runs it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.helm import ROOT, manifests, one
from drabridge import __version__
from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.support import image
from tests.support.agent_on_cluster import BOTH_LANES, CLASS, claim_pod, devices_in_slices, healthy, limits_pod
from tests.support.agent_process import DRIVER, AgentProcess
from tests.support.servers import free_port
from tests.support.udevd import machine_lock
from tests.support.waiting import PATIENCE, short_directory, until

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MIB = 1024 * 1024
pytestmark = pytest.mark.long

# --- locks ----------------------------------------------------------------------------------------------------------


def locked(name: str) -> dict[str, tuple[Version, int]]:
    """Version and number of hashes by package of a lock file."""
    text = (image.IMAGE_FOLDER / name).read_text().replace("\\\n", " ")
    found: dict[str, tuple[Version, int]] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)((?: +--hash=sha256:[0-9a-f]{64})+) *", line)
            assert match, f"{name}: {line!r} is not one package with hashes"
            found[canonicalize_name(match[1])] = Version(match[2]), match[3].count("--hash=")
    return found


@pytest.mark.parametrize(
    ("lock", "ranges"),
    [
        ("requirements.lock", PYPROJECT["project"]["dependencies"]),
        ("build.lock", PYPROJECT["build-system"]["requires"]),
    ],
)
def test_locks_satisfy_the_projects_ranges_and_have_hashes(lock: str, ranges: list[str]) -> None:
    packages = locked(lock)
    assert all(hashes for _, hashes in packages.values())
    for requirement in map(Requirement, ranges):
        version, _ = packages[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement}: {lock} has {version}"


def test_no_program_of_the_base_runs_as_another_user_or_stays_unlisted(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "usr/bin").mkdir(parents=True)
    for name in "python3", "[", "apt-get", "perl", "bash", "python3-config":
        (tmp_path / "usr/bin" / name).write_bytes(b"")
    for name, mode in ("su", 0o4755), ("passwd", 0o6755), ("wall", 0o2755), ("ls", 0o755):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).chmod(mode)
    subprocess.run(["sh", ROOT / "deploy/image/trim_base.sh", tmp_path], check=True)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("su", "passwd", "wall", "ls")} == {0o755}
    assert {path.name for path in (tmp_path / "usr/bin").iterdir()} == {"python3", "["}


def test_build_in_is_what_pyproject_says() -> None:
    lines = (image.IMAGE_FOLDER / "build.in").read_text().splitlines()
    assert sorted(line for line in lines if not line.startswith("#")) == sorted(PYPROJECT["build-system"]["requires"])


@pytest.mark.parametrize("path", sorted(image.IMAGE_FOLDER.glob("*.lock")), ids=lambda path: path.name)
def test_locks_name_no_index(path: Path) -> None:
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", path.read_text())


# --- the image ------------------------------------------------------------------------------------------------------

needs_podman = [
    pytest.mark.slow,
    pytest.mark.podman,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap and podman need root here"),
]


@pytest.fixture(scope="module")
def built() -> Iterator[str]:
    image.build()
    try:
        yield image.IMAGE
    finally:
        image.remove()


# Counted where Python runs: podman may lose the end of what a container that ends at once has written in a burst.
WHAT_IS_COMPILED = r"""
import json, re, subprocess
command = ["python3", "-v", "-c", "import drabridge.agent.main, grpc.aio, kubernetes; print(42)"]
lines = subprocess.run(command, stdout=-1, stderr=-2, text=True).stdout.splitlines()
found = sum(line.endswith(".py") and " matches " in line for line in lines)
print(json.dumps(["42" in lines, found, [x for x in lines if re.search("code object from '/opt[^']*[.]py'", x)]]))
"""


class TestImage:
    pytestmark = needs_podman

    def shell(self, built: str, script: str) -> str:
        return image.command(*image.RUN, "--network=none", "--entrypoint", "sh", built, "-c", script)

    def test_it_is_small(self, built: str, record_property: Any) -> None:
        size = int(image.command("podman", "image", "inspect", "--format", "{{.Size}}", built))
        own = int(self.shell(built, "du -sm /opt/drabridge | cut -f1"))
        record_property("image_mib", size // MIB)
        print(f"image {size // MIB} MiB, of which the agent and its packages {own} MiB")
        assert own < 80
        assert size < 220 * MIB

    def test_nothing_that_builds_or_installs_is_in_it(self, built: str) -> None:
        found = self.shell(built, "for p in pip pip3 gcc cc c++ make uv; do command -v $p || true; done")
        assert found == ""
        modules = "pip ensurepip setuptools wheel hatchling grpc_tools aiohttp pytest"
        script = f'for m in {modules}; do python3 -c "import $m" 2>/dev/null && echo $m; done; true'
        assert self.shell(built, script) == ""

    def test_it_has_no_program_that_is_not_listed(self, built: str) -> None:
        text = (image.IMAGE_FOLDER / "programs.txt").read_text()
        listed = {word for line in text.splitlines() if not line.startswith("#") for word in line.split()}
        found = set(self.shell(built, "ls /bin /sbin /usr/bin /usr/sbin /usr/local/*bin 2>/dev/null; true").split())
        assert {name for name in found if not name.startswith("/")} <= listed

    def test_version_works_without_any_permission(self, built: str) -> None:
        said = image.command(
            *(*image.RUN, "--network=none", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all"),
            *("--security-opt", "no-new-privileges", "--user", "12345:12345", built, "version"),
        )
        assert f"drabridge {__version__}" in " ".join(said.split())

    def test_both_commands_are_on_the_path(self, built: str) -> None:
        """As ``kubectl exec`` would call them."""
        assert "usage: drabridge" in self.shell(built, "drabridge --help")
        assert "usage: podresources" in self.shell(built, "podresources --help")

    def test_bytecode_is_in_the_image(self, built: str) -> None:
        """A read-only root could not keep it, and every start would compile 30 MiB of source."""
        said = self.shell(built, f"python3 -c {shlex.quote(WHAT_IS_COMPILED)}")
        imported, found, compiled = json.loads(said)
        assert imported
        assert found > 200
        assert compiled == []

    @pytest.mark.usefixtures("run_udev")
    async def test_the_agent_runs_in_the_image_as_the_chart_runs_it(self, built: str) -> None:
        """Arguments, mounts, identity and rights come from the rendered DaemonSet; podman stands in for kubelet."""
        with short_directory() as root:
            async with SimCluster(root, timings=ClusterTimings.fast(), tls=True) as cluster:
                await cluster.apply(CLASS)
                async with chart_pod(cluster, root, built) as agent:
                    await agent.ready(30)
                    await until(lambda: len(healthy(cluster)) == 2, why=agent.text)
                    await cluster.apply(claim_pod("c1") + "---\n" + limits_pod("l1"))
                    await cluster.wait_pod("c1")
                    await cluster.wait_pod("l1")
                    assert len(devices_in_slices(cluster)) == 2
                    files = {path.name for path in agent.cdi.iterdir()}
                    for family in ("device-claim-", "device-legacy-"):
                        assert any(name.startswith(f"{DRIVER}-{family}") for name in files), files
                    await until(lambda: reported(cluster, "c1"), 10, agent.text)
                    owners = sorted(row["owner"] for row in (await agent.status())["devices"])
                    assert owners == ["dra-prepared", "legacy", "none", "none"]


@pytest.fixture
def run_udev() -> Iterator[None]:
    """Have /run/udev, which the chart mounts: no test of another worker removes it meanwhile."""
    with machine_lock():
        yield


def reported(cluster: SimCluster, name: str) -> bool:
    found = cluster.get("resourceclaims", name)
    return bool(found and found["status"].get("devices"))


@contextlib.asynccontextmanager
async def chart_pod(cluster: SimCluster, root: Path, built: str) -> Any:
    """The chart's container on node-a, under podman; what kubelet would do for it is done here by hand."""
    values = {
        "config": {**dict.fromkeys(("resources", "udevEvents", "driver")), **yaml.safe_load(BOTH_LANES)},
        "kubelet": {"rootDir": str(root / "node-a")},
        "cdiDir": str(root / "node-a/cdi"),
        "http": {"port": free_port()},
    }
    objects = manifests(values)
    spec = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    config = root / "configmap"
    config.mkdir()
    for name, text in one(objects, "ConfigMap")["data"].items():
        (config / name).write_text(text)
    account = root / "account"
    account.mkdir()
    (account / "token").write_text(cluster.api.token("node-a"))
    (account / "ca.crt").write_bytes(cluster.api.certificate or b"")
    (account / "namespace").write_text("drabridge")
    flags = [
        "--network=host",
        "--user",
        f"{spec['securityContext']['runAsUser']}",
        "-v",
        f"{account}:/var/run/secrets/kubernetes.io/serviceaccount:ro",
    ]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    flags += ["--read-only", "--read-only-tmpfs=false", "--security-opt", "no-new-privileges"]
    flags += [f"--cap-drop={name.lower()}" for name in security["capabilities"]["drop"]]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        source = Path(volume["hostPath"]["path"]) if "hostPath" in volume else config
        if volume.get("hostPath", {}).get("type") == "DirectoryOrCreate":
            source.mkdir(parents=True, exist_ok=True)
        assert source.is_dir(), f"{source} has to exist"
        flags += ["-v", f"{source}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
    host, _, port = cluster.api.url.removeprefix("https://").partition(":")
    variables = {"NODE_NAME": "node-a", "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    assert {variable["name"] for variable in container["env"]} <= variables.keys()
    flags += [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
    agent = AgentProcess(root / "node-a", driver=DRIVER)
    with agent.log.open("ab") as log:
        name = f"drabridge-test-{os.getpid()}"
        agent.process = await asyncio.create_subprocess_exec(
            *image.RUN, "--name", name, *flags, built, *container["args"], stdout=log, stderr=log
        )
    try:
        yield agent
        assert await stopped(name, agent) == 0, agent.text()
    finally:
        image.command("podman", "rm", "-f", "-i", name)


async def stopped(name: str, agent: AgentProcess) -> int:
    """SIGTERM, as kubelet would; the exit status."""
    stop = await asyncio.create_subprocess_exec("podman", "kill", "--signal", "TERM", name, stdout=-3)
    await stop.wait()
    assert agent.process is not None
    return await asyncio.wait_for(agent.process.wait(), 10 * PATIENCE)  # 10 s are the manifests' grace
