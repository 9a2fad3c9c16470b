"""A throw-away certificate for 127.0.0.1, made by the openssl command."""

from __future__ import annotations

import ssl
import subprocess
import tempfile
from pathlib import Path

from drabridge.errors import HostError

_COMMAND = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=drabridge-sim "
    "-addext subjectAltName=IP:127.0.0.1,DNS:localhost"
)


def server_context() -> tuple[ssl.SSLContext, bytes]:
    """(context of the server, PEM of the certificate). Raises HostError when openssl is missing or fails."""
    with tempfile.TemporaryDirectory(prefix="drabridge-tls-") as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "cert.pem")
        command = [*_COMMAND.split(), "-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            raise HostError(
                f"cannot make a certificate for the simulated API server: {error}",
                hint="install openssl, or use tls=False",
            ) from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context, certificate.read_bytes()
