"""Record from what and how a release was built: an in-toto statement with SLSA's provenance, and its signed envelope.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance,
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

BUILD_TYPE = "urn:drabridge:make-release:1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def statement(files: Iterable[Path], commit: str, materials: Mapping[str, str], builder: str) -> dict[str, Any]:
    """Return the statement about ``files``. ``materials``: what else went in, SHA-256 by name. ``builder``: a URI."""
    dependencies = [{"uri": f"git+commit:{commit}", "digest": {"gitCommit": commit}}]
    dependencies += [{"uri": name, "digest": {"sha256": digest}} for name, digest in sorted(materials.items())]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": commit},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def envelope(payload: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    """Return the statement in a DSSE envelope, signed: one line of JSON."""
    signed = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
    signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
    return json.dumps(
        {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
        }
    )
