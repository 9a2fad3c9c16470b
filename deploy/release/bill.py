"""List what is shipped: packages with versions and licences, as CycloneDX and as a text for people.

For the wheel, these are the packages that the locks install. For an image, they are the packages of Python and Debian
in its files. No network is used.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from msgspec import Struct
from packageurl import PackageURL
from packaging.utils import canonicalize_name

UNKNOWN = "not stated"


class Package(Struct, frozen=True, order=True):
    """One package that is shipped. ``kind``: ``pypi`` or ``deb``."""

    kind: str
    name: str
    version: str
    licence: str = UNKNOWN


def of_lock(text: str, licences: dict[str, str]) -> list[Package]:
    """Return the packages of a lock of pip's. ``licences``: by canonical name."""
    return sorted(
        Package("pypi", canonicalize_name(name), version, licences.get(canonicalize_name(name), UNKNOWN))
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", text, re.MULTILINE)
    )


def of_metadata(text: str) -> Package:
    """Return the package that a METADATA file of a wheel is about."""
    fields = HeaderParser().parsestr(text)
    classifiers = [
        one.rpartition(" :: ")[2] for one in fields.get_all("Classifier", []) if one.startswith("License ::")
    ]
    stated = fields.get("License-Expression") or ", ".join(classifiers) or (fields.get("License") or "").strip()
    one_line = stated.splitlines()[0].strip() if stated else UNKNOWN
    return Package("pypi", canonicalize_name(fields["Name"]), fields["Version"], one_line[:100])


def of_image(archive: Path) -> list[Package]:
    """Return the packages in an OCI archive's files: every METADATA of Python, and Debian's list of installed packages.

    A file that a later layer removes still counts: it is shipped.
    """
    found: set[Package] = set()
    with tarfile.open(archive) as image:
        for blob in image:
            if blob.isfile() and blob.name.startswith("blobs/sha256/") and (file := image.extractfile(blob)):
                found.update(_of_layer(file.read()))
    return sorted(found)


def digest_of(archive: Path) -> str:
    """Return the digest of the manifest in an OCI archive, by which a registry knows the image: ``sha256:...``."""
    with tarfile.open(archive) as image:
        index = image.extractfile("index.json")
        assert index is not None
        return str(json.load(index)["manifests"][0]["digest"])


def _of_layer(blob: bytes) -> Iterator[Package]:
    with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(blob)) as layer:  # else a manifest
        for entry in layer:
            if entry.name.endswith(".dist-info/METADATA") and (file := layer.extractfile(entry)):
                yield of_metadata(file.read().decode("utf-8", "replace"))
            elif entry.name.lstrip("./") == "var/lib/dpkg/status" and (file := layer.extractfile(entry)):
                for paragraph in file.read().decode("utf-8", "replace").split("\n\n"):
                    fields = HeaderParser().parsestr(paragraph)
                    if fields["Package"] and "installed" in (fields["Status"] or "").split():
                        yield Package("deb", fields["Package"], fields["Version"], "see /usr/share/doc of Debian")


def cyclonedx(name: str, version: str, packages: Iterable[Package], epoch: int, *, container: bool = False) -> str:
    """Return a CycloneDX 1.6 document in JSON. The same packages and date give the same text."""
    licences = LicenseFactory()
    subject = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER if container else ComponentType.LIBRARY,
        bom_ref=name,
        licenses=[licences.make_from_string("Apache-2.0")],
    )
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{name}@{version}"))
    bom.metadata.component = subject
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    parts = []
    for package in packages:
        namespace = "debian" if package.kind == "deb" else None
        url = PackageURL(package.kind, namespace, package.name, package.version)
        part = Component(
            name=package.name,
            version=package.version,
            bom_ref=str(url),
            purl=url,
            licenses=[licences.make_from_string(package.licence)]
            if package.kind == "pypi" and package.licence != UNKNOWN
            else [],
        )
        parts.append(part)
        bom.components.add(part)
    bom.register_dependency(subject, parts)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    return json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def licences_text(packages: Iterable[Package]) -> str:
    """Return one line for each package: name, version, licence as the package states it."""
    rows = [(one.name, one.version, one.licence) for one in packages]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return "".join(f"{name:<{widths[0]}}  {version:<{widths[1]}}  {licence}\n" for name, version, licence in rows)
