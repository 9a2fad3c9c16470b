"""The ``drabridge`` command.

Each subcommand is a module of its own and is imported only when it is used.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from drabridge import __version__
from drabridge.cli.output import error_text
from drabridge.errors import ConfigError, DrabridgeError, HostError

OK, FAILED, USAGE = 0, 1, 2  # exit codes: success; the command failed; bad usage or configuration

# name -> (module with `configure(parser)` and `run(arguments) -> int`, one line of help)
COMMANDS = {
    "run": ("run", "serve this node's devices: the agent itself"),
    "status": ("status", "who holds which device, on one screen (asks the running agent)"),
    "lanes": ("lanes", "show or move the share of devices that each API may offer"),
    "drain": ("drain", "before an uninstall: give nothing to claims any more, and name what still holds"),
    "devices": ("devices", "list the devices that the configuration makes of this machine"),
    "history": ("history", "who had a device, and when"),
    "match": ("match", "say which udev devices match, and with --explain why"),
    "suggest": ("suggest", "print a resource entry that would match a device node"),
    "record": ("record", "write an umockdev dump of the matched devices, for a bug report"),
    "check-config": ("check_config", "check a configuration, all errors at once; import others' formats"),
    "migrate": ("migrate", "from limits to claims: report on a cluster, convert manifests"),
    "coordinator": ("coordinator", "tell each agent which claims wait for a lease: for clusters of many nodes"),
    "demo": ("demo", "watch an agent serve this machine's devices to a simulated cluster"),
    "completion": ("completion", "print what makes a shell complete commands and options"),
    "version": ("version", "print the versions of drabridge and of what it stands on"),
}

_EPILOG = """\
examples:
  drabridge suggest /dev/ttyUSB0 > radio.yaml    # start a configuration from a device you have
  drabridge check-config radio.yaml              # every error at once, with its line
  drabridge match --config radio.yaml --explain  # why a device matches, or does not
  drabridge run --config radio.yaml              # serve it

exit status: 0 fine, 1 the thing asked failed, 2 bad usage or configuration"""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples stay as written; commands and their help share a line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=18)


class Parser(argparse.ArgumentParser):
    """argparse that keeps examples as written, and whose errors point to the help."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def format_help(self) -> str:
        """Return the help, with examples as they are to be typed."""
        program = self.prog.rpartition("drabridge")[0] + "drabridge"
        return re.sub(r"(?<=^  )drabridge(?= )", program, super().format_help(), flags=re.MULTILINE)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\ntry: {self.prog} --help\n")


def program_name() -> str:
    """Return the program's name as it was called: as a plugin of kubectl, or by its own name."""
    return "kubectl drabridge" if os.path.basename(sys.argv[0]).startswith("kubectl-") else "drabridge"


def build_parser(chosen: str | None, program: str = "drabridge", words: Sequence[str] = ()) -> Parser:
    """Return the parser of ``drabridge``, with the options of the chosen command and of its subcommand in ``words``.

    Other commands' modules are not imported. Without ``words`` all subcommands of the chosen command are.
    """
    description = (
        "One node agent that offers the same devices through Kubernetes' DevicePlugin API and through DRA,\n"
        "and never lets two workloads hold one device."
    )
    parser = Parser(prog=program, description=description, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"drabridge {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, help_text) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            found = importlib.import_module(f"drabridge.cli.{module}")
            found.configure(subparser)
            if own := getattr(found, "COMMANDS", None):
                _add_own_commands(subparser, found.__name__, own, words)
    return parser


def _add_own_commands(
    parser: argparse.ArgumentParser, package: str, commands: Mapping[str, tuple[str, str]], words: Sequence[str]
) -> None:
    """Add the subcommands of a command: the one that ``words`` name, or all with their options if they name none."""
    chosen = next((word for word in words if word in commands), None)
    subparsers = parser.add_subparsers(dest="own", metavar="COMMAND", required=True)
    for name, (module, help_text) in commands.items():
        subparser = subparsers.add_parser(name, help=help_text, description=help_text)
        if chosen in (None, name):
            importlib.import_module(f"{package}.{module}").configure(subparser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Errors of ours become one readable line, never a traceback.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 has no "…" and no "✓"
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if word in COMMANDS), None)
    arguments = build_parser(chosen, program_name(), words).parse_args(words)
    module = importlib.import_module(f"drabridge.cli.{COMMANDS[arguments.command][0]}")
    try:
        code: int = _run_in_pods(arguments, words) if getattr(arguments, "nodes", None) else module.run(arguments)
        print(end="", flush=True)
    except ConfigError as error:
        print(error_text(error), file=sys.stderr)
        return USAGE
    except DrabridgeError as error:
        print(error_text(error), file=sys.stderr)
        return FAILED
    except OSError as error:  # a full disk, a file that cannot be written, `drabridge devices | head`
        if not isinstance(error, BrokenPipeError):
            where = f"{error.filename}: " if error.filename else ""
            print(error_text(HostError(f"{where}{error.strerror or error}")), file=sys.stderr)
        _end_output()
        return FAILED
    except KeyboardInterrupt:
        return 130
    return code


def _end_output() -> None:
    """Write what is left of the output, or drop it if nobody takes it: Python would try again at its end."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_in_pods(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from drabridge.cli import pods

    return pods.run(arguments, words)
