"""``drabridge migrate plan``: plan the order in which workloads move to claims, and check that each step fits."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path

from drabridge.cli.migrate import cluster
from drabridge.cli.migrate.following import place_of
from drabridge.cli.migrate.report import collected
from drabridge.cli.options import add_output, whole
from drabridge.cli.output import as_json_or_yaml, cell, now, show_document, table, wrapped
from drabridge.errors import ConfigError, HostError
from drabridge.kube.client import KubernetesCluster
from drabridge.migrate.apply.manifests import read_manifests
from drabridge.migrate.installers import Key
from drabridge.migrate.plan import text
from drabridge.migrate.plan.build import choose, cluster_id, plan, require_whole
from drabridge.migrate.plan.document import VERSION, Plan, as_data, beside, load
from drabridge.migrate.plan.text import explained
from drabridge.migrate.report.build import Facts
from drabridge.system.files import Care, write_atomically

_EPILOG = """\
Reads the cluster, writes nothing there, and says which workloads come to claims
in which step, and how many devices each node gives to claims before it. Each
step is tried on numbers: where a rollout would lack a device, the plan says
which one, and the exit status is 1. With --write the plan is a YAML file that
`drabridge migrate apply` follows; read and edit it first.

examples:
  drabridge migrate plan --class nvidia.com/gpu=gpu.example.com --write plan.yaml
  drabridge migrate plan --manifests deploy/ --config agent.yaml --write plan.yaml
  drabridge migrate plan plan.yaml
  drabridge migrate plan plan.yaml --explain team-a

exit status: 0 every step fits, 1 one does not or the cluster cannot be read,
2 bad usage"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", type=Path, metavar="PLAN", help="show this plan instead of making one")
    parser.add_argument("--explain", metavar="STEP", help="say what a step of PLAN does, and why it fits or does not")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the plan; a file that is there stays")
    parser.add_argument("--resource", default="", metavar="NAME", help="default: the only one in limits")
    cluster.add_class(parser, "claims name this DeviceClass; default: the class with that extendedResourceName")
    parser.add_argument("--driver", default="", metavar="NAME", help="default: the one that the DeviceClass names")
    cluster.add_names(parser, "namespaces", "only this namespace", "-n", "--namespace")
    text = "devices of each node that stay for limits; default: 0"
    parser.add_argument("--keep", type=whole(0, 1000), default=0, metavar="N", help=text)
    text = "convert the workloads whose manifests are here; namespaces of others are switched"
    cluster.add_names(parser, "manifests", text, "--manifests", metavar="PATH", type=Path)
    parser.add_argument("--config", "-c", type=Path, metavar="FILE", help="the agent's file, for --manifests")
    add_output(parser, ("table", "json", "yaml"), "default: table")
    cluster.add_arguments(parser)
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Make or show a plan. Raises ConfigError for invalid arguments, ClusterError if the API server fails."""
    _check(arguments)
    plan = load(arguments.plan) if arguments.plan else _made(arguments)
    if arguments.explain:
        return _explain(plan, arguments.explain)
    if arguments.write:
        _write(plan, arguments.write)
    _show(plan, arguments)
    return int(not plan.fits)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.explain and not arguments.plan:
        raise ConfigError("--explain needs a PLAN", hint="drabridge migrate plan plan.yaml --explain team-a")
    made = (arguments.resource, arguments.classes, arguments.driver, arguments.namespaces, arguments.manifests)
    if arguments.plan and any((*made, arguments.write, arguments.keep, arguments.config)):
        raise ConfigError("a PLAN that is shown takes no other choices", hint="Leave PLAN out to make a new one")
    if arguments.config and not arguments.manifests:
        raise ConfigError("--config is for --manifests")


def _made(arguments: argparse.Namespace) -> Plan:
    facts, identity = cluster.ask(arguments, _collect)
    require_whole(facts)
    for one in facts.unread:
        print(cell(f"not read: {one.verb} {one.resource}: {one.reason}"), file=sys.stderr)
    resource, device_class, driver = choose(facts, arguments.resource, dict(arguments.classes), arguments.driver)
    base = (arguments.write or Path("plan.yaml")).parent
    head = Plan(
        apiVersion=VERSION,
        cluster=identity,
        made=now(),
        resource=resource,
        device_class=device_class,
        driver=driver,
        keep_for_limits=arguments.keep,
        manifests=tuple(beside(path, base) for path in arguments.manifests),
        config=beside(arguments.config, base) if arguments.config else "",
    )
    return plan(facts, head, _in_manifests(arguments, {resource: device_class}), frozenset(arguments.namespaces))


def _in_manifests(arguments: argparse.Namespace, classes: dict[str, str]) -> frozenset[Key]:
    """Return the convertible workloads of the manifests. Prints on standard error what cannot be converted."""
    if not arguments.manifests:
        return frozenset()
    found = read_manifests(arguments.manifests, arguments.config, classes)
    for finding in found.findings:
        print(cell(finding), file=sys.stderr)
    return frozenset(found.objects)


async def _collect(api: KubernetesCluster) -> tuple[Facts, str]:
    return await collected(api), await cluster_id(api)


def _write(plan: Plan, path: Path) -> None:
    made_by_the_shell = path.is_file() and path.stat().st_size == 0  # > FILE
    if path.exists() and not made_by_the_shell:
        raise HostError(f"{path} is there already", hint="Move it away, or choose another name")
    text = as_json_or_yaml(as_data(plan), "yaml") + "\n"
    try:
        write_atomically(path, text.encode(), mode=0o644, care=Care.WHOLE)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error


def _show(plan: Plan, arguments: argparse.Namespace) -> None:
    def screen(width: int | None) -> list[str]:
        return [table(text.rows(plan), text.COLUMNS, width), *wrapped(text.remarks(plan), width, "")]

    show_document(as_data(plan), arguments.output, screen)
    if arguments.output != "table":
        return
    if not arguments.write and not arguments.plan and stat.S_ISREG(os.fstat(1).st_mode):
        print("note: this table is no plan that `apply` could follow: --write FILE makes one", file=sys.stderr)
    if arguments.write:
        print(f"\nRead {arguments.write}, edit it if need be, then: drabridge migrate apply {arguments.write}")


def _explain(plan: Plan, name: str) -> int:
    step = plan.steps[place_of(plan, name)]
    for line in explained(plan, step):
        print(cell(line))
    return int(bool(step.missing))
