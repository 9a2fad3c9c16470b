"""``python -m deploy.release``: build a release of the commit that is checked out, twice, and sign it.

What comes out (``dist/`` by default): wheels, sdist, chart, an image for each architecture, bills of materials,
licences, the release note, provenance, checksums, and with a key a signature beside each file.
"""

from __future__ import annotations

import argparse
import filecmp
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.generate import registry
from deploy.release import artefacts, audit, bill, notes, provenance, signatures
from deploy.release.signatures import KeyFileError
from drabridge import __version__

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("amd64", "arm64")
PASSWORD = "RELEASE_KEY_PASSWORD"


class ReleaseError(Exception):
    """Why there is no release; the text says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 0, or 1 with the reason on standard error."""
    options = _parser().parse_args(arguments)
    try:
        _release(options)
    except (ReleaseError, KeyFileError, notes.NoSectionError, RuntimeError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  make release KEY=release.key\n"
        "  python -m deploy.release --images amd64 --podman --isolation=chroot --podman --network=host",
    )
    parser.add_argument("--output", type=Path, default=Path("dist"), metavar="DIR", help="default: %(default)s")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help=f"P-256 key in PEM; its password in {PASSWORD}. Without: no signatures"
    )
    parser.add_argument(
        *("--images",),
        nargs="*",
        choices=ARCHITECTURES,
        default=list(ARCHITECTURES),
        help="default: all of them",
    )
    parser.add_argument(
        *("--registry",),
        default=registry(),
        metavar="HOST/OWNER",
        help="where image and chart will be pushed; the chart names it. Default: %(default)s",
    )
    parser.add_argument(
        "--podman", action="append", default=[], metavar="OPTION", help="a further option of podman build"
    )
    parser.add_argument(
        "--builder", default="urn:drabridge:a-person", metavar="URI", help="who builds, for the provenance"
    )
    return parser


def _release(options: argparse.Namespace) -> None:
    started = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    key = signatures.private_key(options.key, os.environ.get(PASSWORD)) if options.key else None
    commit, epoch = _git("rev-parse", "HEAD"), int(_git("log", "-1", "--format=%ct"))
    if changed := _git("status", "--porcelain"):
        raise ReleaseError(f"only what is committed is built: commit or remove\n{changed}")
    note = notes.of_version((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)
    out: Path = options.output.resolve()
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty: files of two releases must not mix")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="drarelease") as name:
        work = Path(name)
        version = _build(work / "first", options, epoch, tell)
        source = work / "first/source"
        for what, file in ("locked", "deploy/image/requirements.lock"), ("allowed", "tests/lowest.txt"):
            if holes := audit.known_holes(source / file):
                raise ReleaseError(f"packages with known holes are {what}; raise their floors:\n" + "\n".join(holes))
            known = "none" if holes == [] else "NOT CHECKED, the index has no data"
            tell(f"known holes of packages that are {what} in {file}: {known}")
        tell("once more, elsewhere, to compare")
        _build(work / "the-second-time", options, epoch, lambda text: None)
        first, second = (work / each / "out" for each in ("first", "the-second-time"))
        must_be_equal(first, second)
        tell("both are identical")
        for path in sorted(first.iterdir()):
            shutil.move(path, out / path.name)
        lock = (work / "first/source/deploy/image/requirements.lock").read_text(encoding="utf-8")
        base = _base((work / "first/source/deploy/image/Containerfile").read_text(encoding="utf-8"))
        if any("BASE=" in option for option in options.podman):
            base = {}
            tell("the provenance names no base: another one than the Containerfile's was given")
        materials = {
            f"deploy/image/{each}": provenance.sha256(work / "first/source/deploy/image" / each)
            for each in ("requirements.lock", "build.lock", "Containerfile")
        } | base
    built = sorted(out.iterdir())
    (out / f"drabridge-{version}-note.md").write_text(note, encoding="utf-8")
    _bills(out, version, lock, epoch)
    for archive in out.glob("*.oci.tar"):  # what cosign signs of an image
        signed = signatures.image_payload(f"{options.registry}/drabridge", bill.digest_of(archive))
        (out / f"{archive.name.removesuffix('.oci.tar')}.payload.json").write_text(signed, encoding="utf-8")
    statement = provenance.statement(built, commit, materials, options.builder)
    payload = json.dumps(statement, indent=1, sort_keys=True).encode() + b"\n"
    (out / f"drabridge-{version}-provenance.json").write_bytes(payload)
    if key:
        (out / f"drabridge-{version}-provenance.intoto.jsonl").write_text(provenance.envelope(payload, key) + "\n")
    files = sorted(out.iterdir())
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{provenance.sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")
    if key:
        for path in (*files, sums):
            signatures.sign(path, key)
        (out / "cosign.pub").write_bytes(signatures.public_pem(key))
    tell(f"{len(list(out.iterdir()))} files in {out}{'' if key else ', not signed: no --key'}")


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise ReleaseError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def _build(work: Path, options: argparse.Namespace, epoch: int, tell: Callable[[str], None]) -> str:
    """Build everything that is compared into ``work/out``; return the version."""
    source, out = work / "source", work / "out"
    source.mkdir(parents=True)
    out.mkdir()
    archive = work / "source.tar"
    _git("archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")
    tell("wheels and sdist")
    python = artefacts.builder(source, work / "tools", epoch)
    artefacts.wheels_and_sdist(python, source, out, epoch)
    (wheel,) = out.glob("drabridge-*.whl")
    version = wheel.name.split("-")[1]
    tell("chart")
    if (
        packed := artefacts.chart(source, out, epoch, (registry(), options.registry))
    ).name != f"drabridge-{version}.tgz":
        raise ReleaseError(f"the chart is {packed.name}, the wheel {version}: run python -m deploy.generate")
    for architecture in options.images:
        tell(f"image for {architecture}")
        artefacts.image(python, source, out, version, architecture, epoch, options.podman)
    return version


def must_be_equal(first: Path, second: Path) -> None:
    """Compare two builds file by file. Raises ReleaseError with the names of those that differ or are missing."""
    names = sorted(path.name for path in first.iterdir())
    _, different, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    if different or missing:
        raise ReleaseError(f"built twice, these are not the same: {', '.join(different + missing)}")


def _base(containerfile: str) -> dict[str, str]:
    found = re.search(r"^ARG BASE=(\S+)@sha256:([0-9a-f]{64})$", containerfile, re.MULTILINE)
    if not found:
        raise ReleaseError("deploy/image/Containerfile does not name its base by digest")
    return {found[1]: found[2]}


def _bills(out: Path, version: str, lock: str, epoch: int) -> None:
    texts = (one.read_text("METADATA") for one in importlib.metadata.distributions())
    stated = [bill.of_metadata(text) for text in texts if text]
    licences = {one.name: one.licence for one in stated}
    shipped = {f"drabridge-{version}": bill.of_lock(lock, licences)}
    for archive in sorted(out.glob("*.oci.tar")):
        shipped[archive.name.removesuffix(".oci.tar")] = bill.of_image(archive)
    for name, packages in shipped.items():
        text = bill.cyclonedx("drabridge", version, packages, epoch, container="-image-" in name)
        (out / f"{name}.cdx.json").write_text(text, encoding="utf-8")
        (out / f"{name}-licences.txt").write_text(bill.licences_text(packages), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
