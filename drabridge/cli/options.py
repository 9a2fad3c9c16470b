"""Define the options that several commands have, each once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from drabridge.system.paths import KUBELET_ROOT

DEFAULT_CONFIG = Path("/etc/drabridge/config.yaml")
PLUGINS = KUBELET_ROOT / "plugins"
OUTPUTS = ("table", "wide", "json", "yaml")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, the agent's configuration."""
    text = f"default: {DEFAULT_CONFIG}"
    parser.add_argument("--config", "-c", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help=text)


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Add ``--socket``, the agent's control socket."""
    text = f"the agent's control.sock; default: the only one below {PLUGINS}"
    parser.add_argument("--socket", type=Path, metavar="FILE", help=text)


def add_output(
    parser: argparse._ActionsContainer, choices: Sequence[str] = OUTPUTS, text: str = "how to print; default: table"
) -> None:
    """Add ``--output``; the first choice is the default."""
    parser.add_argument("-o", "--output", choices=choices, default=choices[0], help=text)


def add_kubeconfig(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--kubeconfig``, for a command that otherwise uses its pod's service account."""
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help=f"{text}; default: the pod's account")


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-level`` and ``--log-format``, for a program that keeps running."""
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--log-format", choices=("logfmt", "json"), default="logfmt")


def driver_name(text: str) -> str:
    """Check a driver's name, for argparse.

    With a mistyped one no claims would be found, and an uninstall would go on.
    """
    from drabridge.config.names import DRIVER_MAX, is_dns_subdomain

    if not is_dns_subdomain(text, DRIVER_MAX):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a domain name, for example gpu.example.com")
    return text


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from {least} to {most}")
        return int(text)

    return read


def seconds(most: int) -> Callable[[str], float]:
    """Return the type of an option that is a time."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not 0 <= found <= most:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected seconds, {most} at most")
        return found

    return read
