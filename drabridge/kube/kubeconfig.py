"""Read a kubeconfig with the Kubernetes client, which knows its plugins and providers; a program for ``access.py``.

    python -m drabridge.kube.kubeconfig FILE [CONTEXT]

prints the :class:`~drabridge.kube.access.Access` as JSON, or why there is none. The leader election, which is the
client's own, also uses this module: it needs the client's ``Configuration``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from drabridge import yaml_reader
from drabridge.errors import ConfigError
from drabridge.kube.access import Access, NoAccess, credential
from podresources.credential import yaml_problem
from podresources.resolve.files import UnreadableFileError, read_named

T = TypeVar("T")
DEPTH_MAX, VALUES_MAX = 50, 100_000  # of YAML with aliases expanded: for more, the client's own reader takes minutes

# The client imports pydantic, which would load plugins: foreign code must not run in a process of root.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def configuration_of(path: Path) -> Any:
    """Return the client's ``Configuration`` for a kubeconfig. Raises ConfigError."""
    return _translated(path, lambda: _loaded(path))


def _loaded(path: Path, context: str | None = None) -> Any:
    from kubernetes import client, config

    for one in str(path).split(os.pathsep):  # several, as $KUBECONFIG has them
        _check(Path(one).expanduser())

    configuration = client.Configuration()
    config.load_kube_config(
        config_file=str(path), context=context, client_configuration=configuration, persist_config=False
    )
    return _checked(configuration, str(path))


def _check(path: Path) -> None:
    """Raise ConfigError, or an error of YAML, if the client would need very long to read the file."""
    try:
        data = read_named(path)
        yaml_reader.read((data or b"").decode(), DEPTH_MAX, VALUES_MAX, lambda found: None)
    except UnreadableFileError as error:
        raise ConfigError(f"{path} is not a kubeconfig that can be used: {error.reason}") from error
    except yaml_reader.DocumentTooLargeError as error:
        raise ConfigError(f"{path} is not a kubeconfig that can be used: its YAML is {error}") from error


def _translated(path: Path, read: Callable[[], T]) -> T:
    """Return what ``read`` returns. Raises ConfigError for every exception of the client and the YAML library.

    Both may raise any exception for a malformed file. For exceptions that are not their own only the type is reported:
    the text may contain a secret.
    """
    from kubernetes.config import ConfigException
    from yaml import MarkedYAMLError

    try:
        return read()
    except ConfigError:
        raise
    except (ConfigException, OSError) as error:
        why = str(error)
    except MarkedYAMLError as error:
        place = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        why = f"it is no YAML: {yaml_problem(error.problem)}{place}"
    except Exception as error:
        why = f"it has not the form of one ({type(error).__name__})"
    raise ConfigError(f"{path} is not a kubeconfig that can be used: {why}")


def configuration_in_cluster() -> Any:
    """Return the client's ``Configuration`` for the pod's service account. Raises ConfigError."""
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException as error:
        raise ConfigError(f"this is not a pod with a service account: {error}") from error
    return _checked(configuration, "the service account")


def _checked(configuration: Any, whose: str) -> Any:
    """Return the ``Configuration`` with tokens that HTTP can send. Raises ConfigError, whose text never quotes one."""
    configuration.api_key = {
        name: credential(value, f"the token of {whose}") for name, value in configuration.api_key.items() if value
    }
    return configuration


def access_of(configuration: Any) -> Access:
    """Return the access of a ``Configuration``. Reads its files now: those from text in a kubeconfig are temporary."""
    header: dict[str, Any] = next(iter(configuration.auth_settings().values()), {})
    authorization = header.get("value") or (configuration.get_basic_auth_token() if configuration.username else "")
    return Access(
        configuration.host.rstrip("/"),
        authorization=authorization or "",
        certificate=_text(configuration.cert_file),
        key=_text(configuration.key_file),
        authorities=_authorities(configuration),
        server_name=configuration.tls_server_name or "",
        verify=bool(configuration.verify_ssl),
        proxy=_proxy(configuration),
    )


def _authorities(configuration: Any) -> str:
    data = getattr(configuration, "ca_cert_data", None)
    return (data.decode() if isinstance(data, bytes) else data) or _text(configuration.ssl_ca_cert)


def _text(path: str | None) -> str:
    return Path(path).read_text() if path else ""


def _proxy(configuration: Any) -> str:
    from urllib import request
    from urllib.parse import urlsplit

    host = urlsplit(configuration.host).hostname or ""
    bypassed = request.proxy_bypass_environment(host, {"no": configuration.no_proxy or ""})  # type: ignore[attr-defined]
    return "" if bypassed else configuration.proxy or ""


def read(path: Path, context: str | None = None) -> Access:
    """Return the access that a kubeconfig gives. Raises ConfigError."""
    return _translated(path, lambda: access_of(_loaded(path, context)))


def main() -> None:
    answer: Access | NoAccess
    try:
        answer = read(Path(sys.argv[1]), *sys.argv[2:])
    except ConfigError as error:
        answer = NoAccess(error.message)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
