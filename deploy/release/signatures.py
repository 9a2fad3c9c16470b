"""Sign files with a maintainer's key, and check signatures.

The form is cosign's for files and keys of one's own: ``FILE.sig`` has the base64 of an ASN.1 ECDSA signature (P-256,
SHA-256) of the file. ``cosign verify-blob`` reads it, and so does openssl.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

SUFFIX = ".sig"


class KeyFileError(Exception):
    """The key's file cannot be used; the text says what is wanted."""


def private_key(path: Path, password: str | None = None) -> ec.EllipticCurvePrivateKey:
    """Read a P-256 key in PEM. Raises KeyFileError."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password.encode() if password else None)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        hint = "RELEASE_KEY_PASSWORD is its password; a new one: openssl ecparam -name prime256v1 -genkey -noout"
        raise KeyFileError(f"{path} cannot be read as a private key in PEM ({error}). {hint}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise KeyFileError(f"{path}: cosign signs with P-256 keys, this is another kind")
    return key


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public key of a private one, in the form of ``cosign.pub``."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def sign(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write ``FILE.sig`` beside the file; returns its path."""
    signature = key.sign(path.read_bytes(), ec.ECDSA(hashes.SHA256()))
    target = path.with_name(path.name + SUFFIX)
    target.write_text(base64.b64encode(signature).decode(), encoding="ascii")
    return target


def image_payload(repository: str, digest: str) -> str:
    """Return what cosign signs of an image; ``cosign attach signature --payload ... --signature`` pushes it.

    https://github.com/containers/image/blob/main/docs/containers-signature.5.md
    """
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature",
    }
    return json.dumps({"critical": critical, "optional": None}, separators=(",", ":"))


def is_signed(path: Path, public: bytes) -> bool:
    """Whether ``FILE.sig`` is a signature of the file as it is now, by the owner of ``public`` (PEM)."""
    key = serialization.load_pem_public_key(public)
    try:
        signature = base64.b64decode(path.with_name(path.name + SUFFIX).read_text(encoding="ascii"), validate=True)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(signature, path.read_bytes(), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, OSError):
        return False
    return True
