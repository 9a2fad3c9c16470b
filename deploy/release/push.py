"""``python -m deploy.release.push dist``: push a release's images, as one of all architectures, and its chart.

They go to ``REGISTRY/drabridge`` and ``oci://REGISTRY/charts/drabridge``. The registry is pyproject.toml's, or another
one. The release must have been built for it, because the chart names the image. REGISTRY_USER and REGISTRY_PASSWORD log
in; without them, the logins of `podman login` and `helm registry login` are used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from deploy import helm
from deploy.generate import registry
from drabridge import __version__

LIMIT_SECONDS = 1800.0  # ends an upload that hangs


class PushError(Exception):
    """Why something was not pushed; the text says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Push what the command line names; return 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.release.push",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  make release REGISTRY=ghcr.io/me && make push REGISTRY=ghcr.io/me",
    )
    parser.add_argument("folder", type=Path, help="what `make release` wrote")
    parser.add_argument("--registry", default=registry(), metavar="HOST/OWNER", help="default: %(default)s")
    parser.add_argument("--plain-http", action="store_true", help="a registry without TLS, for tests")
    options = parser.parse_args(arguments)
    user, password = os.environ.get("REGISTRY_USER", ""), os.environ.get("REGISTRY_PASSWORD", "")
    try:
        chart = _chart(options.folder, options.registry)
        print("image", _push_images(options.folder, options.registry, options.plain_http, user, password), flush=True)
        remote = f"oci://{options.registry}/charts"
        helm.push(chart, remote, plain_http=options.plain_http, user=user, password=password)
        print("chart", f"{remote}/drabridge", __version__)
    except (PushError, helm.HelmRefusedError) as error:
        print(f"not pushed: {error}", file=sys.stderr)
        return 1
    except helm.HelmNotInstalledError as error:
        print(f"the chart is not pushed: {error}, or run: helm push {chart} {remote}", file=sys.stderr)
        return 1
    return 0


def _chart(folder: Path, wanted: str) -> Path:
    """Return the packed chart. Raises PushError for one that names the image in another registry."""
    path = folder / f"drabridge-{__version__}.tgz"
    if not path.exists():
        raise PushError(f"{path} is not there: run make release")
    with tarfile.open(path) as files:
        member = files.extractfile("drabridge/values.yaml")
        assert member is not None
        named = yaml.safe_load(member.read())["image"]["repository"]
    if named != f"{wanted}/drabridge":
        raise PushError(f"the chart installs {named}: build it for this registry, make release REGISTRY={wanted}")
    return path


def _push_images(folder: Path, where: str, plain_http: bool, user: str, password: str) -> str:
    """Push one manifest of all architectures; return its name, with the version as the tag."""
    name = f"{where}/drabridge:{__version__}"
    archives = sorted(folder.glob(f"drabridge-{__version__}-image-*.oci.tar"))
    if not archives:
        raise PushError(f"{folder} has no image: run make release without --images")
    tls = ("--tls-verify=false",) if plain_http else ()
    if password:
        host = where.partition("/")[0]
        _podman("login", *tls, "--username", user, "--password-stdin", host, said=password)
    subprocess.run(["podman", "manifest", "rm", name], capture_output=True, check=False, timeout=LIMIT_SECONDS)
    _podman("manifest", "create", name)
    try:
        for archive in archives:
            _podman("manifest", "add", name, f"oci-archive:{archive}")
        _podman("manifest", "push", "--all", *tls, name, f"docker://{name}")
    finally:
        _podman("manifest", "rm", name)
    return name


def _podman(*words: str, said: str = "") -> None:
    done = subprocess.run(
        ["podman", *words], input=said, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )
    if done.returncode:
        raise PushError(f"podman {words[0]} {words[1]}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
