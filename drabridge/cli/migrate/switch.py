"""``drabridge migrate switch``: new pods of whole namespaces get claims instead of limits, or their limits again."""

from __future__ import annotations

import argparse
import re

from drabridge.cli.migrate import cluster
from drabridge.cli.options import add_output, whole
from drabridge.cli.output import as_json_or_yaml, cell, table
from drabridge.errors import ConfigError
from drabridge.kube.client import KubernetesCluster
from drabridge.migrate.switch.policy import policies
from drabridge.migrate.switch.switcher import Choice, State, state_of, to_claims, to_limits

_EPILOG = """\
While a namespace is switched, a MutatingAdmissionPolicy in the API server turns
the limits of its new pods into claims. Manifests stay as they are, and so do
pods that run: roll a workload out to move it (kubectl rollout restart). Pods
of DaemonSets, static pods, and pods with the annotation "switch.drabridge/to:
limits" keep their limits. Without NAMESPACE, shows what is switched.

examples:
  drabridge migrate switch team-a --to claims --class nvidia.com/gpu=gpu.example.com
  drabridge migrate switch team-a --to claims --percent 20
  drabridge migrate switch team-a --to claims --selector app=web
  drabridge migrate switch team-a --to limits
  drabridge migrate switch
  drabridge migrate switch --print --class nvidia.com/gpu=gpu.example.com > policies.yaml

exit status: 0 done, 1 the API server or the cluster does not allow it, 2 bad usage"""

_PAIR = re.compile(r"[A-Za-z0-9./_-]+=[A-Za-z0-9._-]*")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("namespaces", nargs="*", metavar="NAMESPACE", help="the namespaces to switch")
    parser.add_argument("--to", choices=("claims", "limits"), help="what new pods get")
    cluster.add_class(
        parser, "claims for this resource name this DeviceClass; default: the class with that extendedResourceName"
    )
    text = "make a template for N devices as well; those for counts in use are made anyway"
    cluster.add_names(parser, "counts", text, "--count", metavar="N", type=whole(1, 32))
    text = "switch only N of a hundred owners (Deployments, Jobs, ...), always the same ones; default: all"
    parser.add_argument("--percent", type=whole(0, 100), metavar="N", help=text)
    text = "switch only pods with these labels"
    parser.add_argument("--selector", type=_selector, metavar="KEY=VALUE,...", help=text)
    text = "print the policies, to be kept in git, and change nothing"
    parser.add_argument("--print", action="store_true", help=text)
    add_output(parser, ("table", "json", "yaml"), "default: table")
    cluster.add_arguments(parser)
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Switch, print or show. Raises ConfigError for invalid arguments, ClusterError if the API server fails."""
    _check(arguments)
    classes = dict(arguments.classes)
    if arguments.print:
        print("---\n".join(as_json_or_yaml(one, "yaml") + "\n" for one in policies(classes)), end="")
        return 0
    choice = Choice(classes, frozenset(arguments.counts), arguments.percent, arguments.selector or "")
    done, state = cluster.ask(arguments, lambda api: _switch(api, arguments, choice))
    _show(done, state, arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if bool(arguments.namespaces) != bool(arguments.to):
        raise ConfigError("NAMESPACE and --to belong together", hint="drabridge migrate switch team-a --to claims")
    if arguments.print and (arguments.to or not arguments.classes):
        raise ConfigError("--print needs --class and no --to", hint="The policies are the same for all namespaces")
    only_to_claims = arguments.counts or arguments.percent is not None or arguments.selector
    if arguments.to != "claims" and (only_to_claims or (arguments.classes and not arguments.print)):
        raise ConfigError("--class, --count, --percent and --selector are for --to claims")


async def _switch(api: KubernetesCluster, arguments: argparse.Namespace, choice: Choice) -> tuple[list[str], State]:
    done: list[str] = []

    def tell(line: str) -> None:
        done.append(line)
        if arguments.output == "table":
            print(cell(line), flush=True)

    if arguments.to == "claims":
        await to_claims(api, arguments.namespaces, choice, tell)
    elif arguments.to == "limits":
        await to_limits(api, arguments.namespaces, tell)
    return done, await state_of(api)


def _show(done: list[str], state: State, arguments: argparse.Namespace) -> None:
    rows = [
        {"namespace": one.namespace, "percent": one.percent, "selector": one.selector, "templates": list(one.templates)}
        for one in state.namespaces
    ]
    if arguments.output != "table":
        print(as_json_or_yaml({"done": done, "classes": dict(state.classes), "namespaces": rows}, arguments.output))
    elif not arguments.to:
        nothing = "No namespace is switched. For example: drabridge migrate switch team-a --to claims"
        print(table(rows, ("namespace", "percent", "selector", "templates")) if rows else nothing)
    elif arguments.to == "claims":
        for namespace in arguments.namespaces:
            command = f"kubectl -n {namespace} rollout restart ..."
            print(f"Pods that run keep their limits until they are replaced: {command}")
    else:
        print("Pods that run keep their claims until they are replaced; the templates stay for them.")


def _selector(text: str) -> str:
    if not all(_PAIR.fullmatch(pair) for pair in text.split(",")):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected KEY=VALUE, several with commas")
    return text
