"""Make the certificates and kubeconfigs of a cluster that lives for a day."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = datetime.timedelta(days=30)
SKEW = datetime.timedelta(hours=1)


class Authority:
    """A certificate authority in a folder: ``ca.crt`` and ``ca.key``, made at first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "ca.crt").exists():
            key = _key(folder / "ca.key")
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
            self._write(folder / "ca.crt", _builder(name, name, key, authority=True).sign(key, hashes.SHA256()))

    def issue(self, name: str, common_name: str, organization: str = "", hosts: Sequence[str] = ()) -> None:
        """Write ``NAME.crt`` and ``NAME.key``. ``hosts``: names and addresses of a server."""
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        signer = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        issuer = x509.load_pem_x509_certificate((self.folder / "ca.crt").read_bytes()).subject
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        builder = _builder(x509.Name(attributes), issuer, _key(self.folder / f"{name}.key"), authority=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
        self._write(self.folder / f"{name}.crt", builder.sign(signer, hashes.SHA256()))

    def key_pair(self, name: str) -> None:
        """Write ``NAME.key`` and ``NAME.pub``, without a certificate."""
        public = _key(self.folder / f"{name}.key").public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        (self.folder / f"{name}.pub").write_bytes(public.public_bytes(serialization.Encoding.PEM, form))

    def kubeconfig(self, name: str, server: str) -> Path:
        """Write ``NAME.kubeconfig``, which uses the certificate of that name; return its path."""
        path, folder = self.folder / f"{name}.kubeconfig", self.folder
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": server, "certificate-authority": str(folder / "ca.crt")}}
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate": str(folder / f"{name}.crt"),
                        "client-key": str(folder / f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config, indent=1))
        return path

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
