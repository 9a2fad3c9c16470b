"""From an earlier release to this version and back again, while pods of both kinds run.

The earlier release is built from this repository's history: its image, its chart, its files on the node.
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.helm import ROOT
from tests.cluster.bed import Json, at_the_beginning
from tests.cluster.real_bed import chart, own_cluster, real
from tests.cluster.steps import claim_pod, deleted, legacy_pod, running
from tests.support import image

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]

RELEASES = {  # the commit of each
    "0.1.0": "24eaff00b6bf02d8f87607efc836c438b629d8ba",
    "0.2.0": "6ee5673a7fec618bb73829f5fb7300201cb544b5",
}


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Image and chart of an earlier release, the image on the node."""
    cluster = own_cluster()
    if cluster is None:
        pytest.skip("not a cluster of tests.node: nothing here can bring an image of an earlier release to the node")
    folder = tmp_path_factory.mktemp(f"release-{request.param}")
    archive, there = folder / "source.tar", folder / "source"
    taken = ["git", "-C", str(ROOT), "archive", "--output", str(archive), RELEASES[request.param]]
    if subprocess.run(taken, capture_output=True, check=False, timeout=60).returncode:
        pytest.skip(f"the commit of {request.param} is not here: no git history")
    with tarfile.open(archive) as files:
        files.extractall(there, filter="data")
    name = f"localhost/drabridge-test:release-{request.param}"
    image.build(name, there)
    try:
        saved = folder / "image.tar"
        image.command("podman", "save", "-q", "--format", "oci-archive", "-o", saved, name, seconds=300)
        cluster.import_image(saved)
        yield name, there / "deploy/chart"
    finally:
        image.remove(name)


async def test_pods_and_claims_outlive_an_upgrade_and_the_way_back(release: tuple[str, Path]) -> None:
    name, folder = release
    async with real() as bed:

        def former(mark: str) -> list[Json]:
            return chart(name, bed.node, bed.config, {"upgraded": mark}, folder=folder)

        await bed.install()
        await at_the_beginning(bed)  # tests before may have left lanes that the earlier release does not know
        await bed.replace(former)
        await at_the_beginning(bed)
        await legacy_pod(bed, "limits-0")
        await claim_pod(bed, "claim-0")
        await running(bed, "limits-0", "claim-0")
        held = await bed.owners()
        assert sorted(held.values()) == ["dra-prepared", "legacy"]

        await bed.upgrade()
        assert await bed.owners() == held
        await legacy_pod(bed, "limits-1")
        await claim_pod(bed, "claim-1")
        await running(bed, "limits-0", "claim-0", "limits-1", "claim-1")
        held = await bed.owners()
        assert sorted(held.values()) == ["dra-prepared", "dra-prepared", "legacy", "legacy"]

        await bed.replace(former)
        assert await bed.owners() == held
        await running(bed, "limits-0", "claim-0", "limits-1", "claim-1")
        await deleted(bed, "limits-0", "claim-1")
        await legacy_pod(bed, "limits-2")
        await running(bed, "limits-2", "claim-0", "limits-1")
        assert not await bed.conflicts()
