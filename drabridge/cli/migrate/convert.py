"""``drabridge migrate convert``: rewrite manifests from limits to ResourceClaims, or back."""

from __future__ import annotations

import argparse
import difflib
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from drabridge.cli.migrate import cluster
from drabridge.cli.options import add_output
from drabridge.cli.output import cell
from drabridge.errors import ConfigError, HostError
from drabridge.migrate.configured import devices_of
from drabridge.migrate.convert import files
from drabridge.migrate.convert.conversion import Outcome, Source, convert_group, reverse, text_of
from drabridge.migrate.convert.default_classes import WORDS, default_devices, of_classes
from drabridge.migrate.convert.post_render import FOLDER_SUFFIX, HEAD, KUSTOMIZATION, component, nameless
from drabridge.migrate.convert.settings import Finding, Level, Settings
from drabridge.migrate.convert.templates import TEMPLATES_FILE
from drabridge.migrate.report.document import number
from drabridge.system.files import Care, write_atomically
from podresources.resolve.files import UnreadableFileError, read

STDIN = "-"
UNDO_SUFFIX = ".undo"  # suffix of the file beside a JSON manifest that keeps its former lines


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="files, folders, kustomizations; - for standard input")
    cluster.add_class(parser, "convert this resource to this DeviceClass; without it, to that of its vendor's driver")
    text = "ask the cluster which DeviceClass a resource has, and nothing else"
    parser.add_argument("--from-cluster", action="store_true", help=text)
    cluster.add_arguments(parser)
    text = "take resources, DeviceClasses and attributes from the agent's file"
    parser.add_argument("--config", "-c", type=Path, metavar="FILE", help=text)
    cluster.add_names(parser, "path", "where a kind has its pod template; * is each", "--path", metavar="KIND=PATH")
    parser.add_argument("--reverse", action="store_true", help="claims that convert made become the limits they were")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--diff", action="store_true", help="print what would change, and change nothing")
    ways.add_argument("--check", action="store_true", help="fail if anything is left to convert, and change nothing")
    ways.add_argument("--in-place", action="store_true", help="write the files, each with a backup beside it")
    text = "print every place that names devices, and what becomes of it"
    ways.add_argument("--list", action="store_true", help=text)
    text = "be a filter for rendered manifests, as Helm calls it"
    ways.add_argument("--post-renderer", action="store_true", help=text)
    text = "manifests, or a Kustomize component, with a folder for each Application whose chart needs a patch"
    add_output(ways, ("manifests", "kustomize"), text)
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="with -o kustomize: the component's folder")
    text = "with --in-place: suffix of the backup (default: .orig)"
    parser.add_argument("--backup", default=".orig", metavar="SUFFIX", help=text)
    parser.epilog = (
        "Only lines that must change do; comments, order, quoting and anchors stay. What is left on limits is named\n"
        "with its reason on standard error, and the exit status is then 1. --reverse gives back the bytes that were\n"
        "there; it makes no backup. JSON has no comments to keep them in: --in-place writes them to FILE.undo. What a\n"
        "file with values of a chart needs beside it is written to FILE.claims/, and taken away by --reverse.\n\n"
        "examples:\n"
        "  drabridge migrate convert --class nvidia.com/gpu=gpu.example.com --diff deploy/\n"
        "  drabridge migrate convert --config agent.yaml --in-place deploy/\n"
        "  drabridge migrate convert --reverse --in-place deploy/\n"
        "  drabridge migrate convert --config agent.yaml -o kustomize --to claims/ deploy/\n"
        "  helm template chart | drabridge migrate convert --config agent.yaml --post-renderer | kubectl apply -f -"
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert, then print, compare or write. Raises ConfigError for invalid arguments."""
    _check(arguments)
    settings = None if arguments.reverse else _settings(arguments)
    groups, findings = _sources(arguments, settings)
    if settings is not None and not settings.devices:
        settings = _by_default(arguments, settings, groups)
    outcomes = list(_outcomes(groups, settings, can_undo=not arguments.post_renderer))
    for outcome in outcomes:
        findings += outcome.findings()
        if arguments.output == "kustomize":
            findings += [replace(one, file=outcome.source.name) for one in nameless(outcome.conversion.pods)]
    for finding in findings:
        print(cell(finding), file=sys.stderr)
    broken = any(finding.level is Level.ERROR for finding in findings)
    left = any(finding.level is Level.LEFT for finding in findings)
    if arguments.post_renderer:
        if not broken:
            _print(outcomes)
        return int(broken)
    changed = [outcome for outcome in outcomes if outcome.changed]
    if arguments.list:
        for outcome in outcomes:
            for place in outcome.places():
                print(cell(place))
    elif arguments.check:
        for outcome in changed:
            print(cell(f"{outcome.source.name}: {_counted(outcome)} to convert"))
        left |= bool(changed)
    elif arguments.diff:
        for outcome in changed:
            sys.stdout.writelines(_diff(outcome))
    elif arguments.in_place:
        _write(changed, "" if arguments.reverse else arguments.backup)
    elif arguments.output == "kustomize":
        _write_component(outcomes, arguments.to)
    elif outcomes:
        _print(outcomes)
        for path, _, text in (one for outcome in outcomes for one in _files_beside(outcome)):
            if text:
                print(cell(f"note: {path} belongs to it: --in-place writes it, --diff shows it"), file=sys.stderr)
        if any(outcome.undo for outcome in outcomes):
            print("note: --reverse cannot use this output: JSON has no comments; keep the file", file=sys.stderr)
    return int(broken or left)


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.files and not arguments.post_renderer:
        raise ConfigError("no FILE was named", hint="Name files or folders, or - for standard input")
    if arguments.post_renderer and arguments.files not in ([], [STDIN]):
        raise ConfigError("--post-renderer reads standard input alone", hint="Leave the files out")
    if arguments.post_renderer and arguments.reverse:
        raise ConfigError("--post-renderer leaves nothing in its output that --reverse could use")
    if arguments.in_place and STDIN in arguments.files:
        raise ConfigError("standard input cannot be written in place", hint="Leave --in-place out")
    if (arguments.output == "kustomize") != (arguments.to is not None):
        raise ConfigError("-o kustomize and --to FOLDER belong together")
    if arguments.list and arguments.reverse:
        raise ConfigError("--list says what a conversion makes of each place", hint="Leave --reverse out")
    if arguments.from_cluster and (arguments.classes or arguments.config or arguments.reverse):
        raise ConfigError("--from-cluster asks instead of --class and --config", hint="Leave one of them out")
    if arguments.output == "kustomize" and arguments.reverse:
        raise ConfigError("-o kustomize changes no manifest", hint="To go back, take the component out")


# --- what goes in ---------------------------------------------------------------------------------------------------


def _settings(arguments: argparse.Namespace) -> Settings:
    devices = devices_of(arguments.config, dict(arguments.classes))
    paths: dict[str, tuple[str, ...]] = {}
    for text in arguments.path:
        kind, equals, path = text.partition("=")
        if not kind or not equals or not path:
            raise ConfigError(f"--path {text} is not KIND=PATH", hint="For example Fleet=spec.groups.*.template")
        paths[kind] = (*paths.get(kind, ()), path)
    return Settings(devices, paths)


def _by_default(arguments: argparse.Namespace, settings: Settings, groups: list[list[Source]]) -> Settings:
    """Return the settings with the resources named in the texts: by the cluster's DeviceClasses, or the vendors'.

    Raises ConfigError if no text was read, or the cluster cannot be asked.
    """
    texts = [source.text for group in groups for source in group]
    if not texts:
        hint = "Give --class nvidia.com/gpu=gpu.example.com, or --config with a deviceClass for each resource"
        raise ConfigError("no resource was named", hint=hint)
    if arguments.from_cluster:
        devices, without = of_classes(cluster.ask(arguments, cluster.classes_of), texts)
        for name in without:
            print(cell(f"note: {name} stays: the cluster has no DeviceClass for it"), file=sys.stderr)
    else:
        devices = default_devices(texts)
    whose = "of the cluster" if arguments.from_cluster else "by default; --class or --from-cluster say another"
    for name, device in devices.items():
        print(cell(f"note: {name}: DeviceClass {device.device_class}, {whose}"), file=sys.stderr)
    return replace(settings, devices=devices)


def _sources(arguments: argparse.Namespace, settings: Settings | None) -> tuple[list[list[Source]], list[Finding]]:
    """Read all named files: return groups of texts that are deployed together, and findings for unreadable files."""
    paths = [Path(name) for name in arguments.files if name != STDIN]
    resources = WORDS if settings and not settings.devices else settings.devices if settings else ()
    found = files.find(paths, resources)
    findings = found.findings
    groups = [list(_texts(((str(path), path) for path in group), findings)) for group in found.groups]
    if arguments.post_renderer or STDIN in arguments.files:
        groups.append(list(_texts([("(standard input)", None)], findings)))
    several = sum(map(len, groups)) > 1
    if several and not (arguments.diff or arguments.check or arguments.list or arguments.in_place or arguments.to):
        raise ConfigError(
            "several files cannot be printed as one",
            hint="Add --diff, --check, --in-place, --list, or -o kustomize --to FOLDER",
        )
    return groups, findings


def _texts(named: Iterable[tuple[str, Path | None]], findings: list[Finding]) -> Iterator[Source]:
    for name, path in named:
        try:
            text = _standard_input() if path is None else files.text_of(path)
            undo, beside = ("", {}) if path is None else (_undo_of(path), _beside(path))
        except UnreadableFileError as error:
            text = Finding(Level.ERROR, 0, "", f"it cannot be read: {error}", "")
        if isinstance(text, Finding):
            findings.append(replace(text, file=name))
        else:
            yield Source(name, text, undo, beside)


def _standard_input() -> str | Finding:
    data = sys.stdin.buffer.read(files.MOST_BYTES + 1)
    if len(data) > files.MOST_BYTES:
        return Finding(Level.ERROR, 0, "", f"it is larger than {files.MOST_BYTES:,} bytes", "convert it in parts")
    return text_of(data)


def _undo_of(path: Path) -> str:
    """Return what earlier conversions keep beside a JSON file; "" if there is nothing."""
    return _text_at(Path(f"{os.path.realpath(path)}{UNDO_SUFFIX}"))


def _text_at(path: Path) -> str:
    """Return the text of a file that a conversion wrote; "" if it is missing. Raises UnreadableFileError."""
    return (read(path, files.MOST_BYTES) or b"").decode("utf-8", "replace")


def _beside(path: Path) -> dict[str, str]:
    """Return the files that conversions wrote beside a values file: name -> text; {} if the folder is not theirs."""
    folder = Path(f"{path}{FOLDER_SUFFIX}")
    found = {} if folder.is_symlink() else {name: _text_at(folder / name) for name in (KUSTOMIZATION, TEMPLATES_FILE)}
    return {name: text for name, text in found.items() if text.startswith(HEAD)}


def _outcomes(groups: list[list[Source]], settings: Settings | None, *, can_undo: bool) -> Iterator[Outcome]:
    """Convert every group; without ``settings`` convert it back."""
    for sources in groups:
        if settings is None:
            yield from (Outcome(source, reverse(source.text, source.undo)) for source in sources)
        else:
            yield from convert_group(sources, settings, can_undo=can_undo)


# --- what comes out -------------------------------------------------------------------------------------------------


def _print(outcomes: Iterable[Outcome]) -> None:
    """Print the texts unchanged, byte for byte."""
    sys.stdout.flush()
    for outcome in outcomes:
        sys.stdout.buffer.write(outcome.conversion.text.encode())
    sys.stdout.buffer.flush()


def _diff(outcome: Outcome) -> Iterator[str]:
    name = outcome.source.name.lstrip("/")
    yield from _diff_of(name, outcome.source.text, outcome.conversion.text)
    for path, before, after in _files_beside(outcome):
        yield from _diff_of(str(path).lstrip("/"), before, after)


def _diff_of(name: str, before: str, after: str) -> Iterator[str]:
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    for line in difflib.unified_diff(old, new, f"a/{cell(name)}", f"b/{cell(name)}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _files_beside(outcome: Outcome) -> Iterator[tuple[Path, str, str]]:
    """Yield each changed file beside a values file: path, text before and text after ("": no file)."""
    before, after = outcome.source.beside, outcome.beside
    for name in sorted({*before, *after}):
        if before.get(name, "") != after.get(name, ""):
            path = Path(f"{outcome.source.name}{FOLDER_SUFFIX}") / name
            yield path, before.get(name, ""), after.get(name, "")


def _counted(outcome: Outcome) -> str:
    pods = len(outcome.conversion.pods)
    return number(pods, "pod template") if pods else "claims"


def _write(changed: Iterable[Outcome], backup: str) -> None:
    """Overwrite the files, each with a backup. Nothing is written if one of the backups exists already."""
    paths = [Path(os.path.realpath(outcome.source.name)) for outcome in changed]
    for path, outcome in zip(paths, changed, strict=True):
        if backup and outcome.text_changed and Path(f"{path}{backup}").exists():
            raise HostError(
                f"there is a backup {path}{backup} already", hint="Move it away, or choose another --backup"
            )
    for path, outcome in zip(paths, changed, strict=True):
        try:
            _write_beside(outcome)
            if not outcome.text_changed:
                continue
            mode = stat.S_IMODE(path.stat().st_mode)
            if backup:
                write_atomically(f"{path}{backup}", outcome.source.text.encode(), mode=mode, care=Care.WHOLE)
            undo = Path(f"{path}{UNDO_SUFFIX}")
            if outcome.undo:
                write_atomically(undo, outcome.undo.encode(), mode=mode, care=Care.WHOLE)
            write_atomically(path, outcome.conversion.text.encode(), mode=mode, care=Care.WHOLE)
            if outcome.source.undo and not outcome.undo:
                undo.unlink()
        except OSError as error:
            raise HostError(f"{path} cannot be written: {error.strerror}") from error
        print(cell(f"{outcome.source.name}: {'converted' if backup else 'as it was'}"))


def _write_beside(outcome: Outcome) -> None:
    """Write or remove the files that values need beside them. Other files in that folder stay."""
    for path, _, text in _files_beside(outcome):
        if path.parent.is_symlink():
            raise HostError(f"{path.parent} is a symbolic link: nothing is written there")
        if text:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, text.encode(), mode=0o644, care=Care.WHOLE)
        else:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        how = ": its first lines say how Helm's output goes through it" if path.name == KUSTOMIZATION else ""
        print(cell(f"{path}: written{how}" if text else f"{path}: removed"))


def _write_component(outcomes: Iterable[Outcome], folder: Path) -> None:
    outcomes = list(outcomes)
    pods = [pod for outcome in outcomes for pod in outcome.conversion.pods if pod.manifest.kind]
    written = {folder / name: text for name, text in component(pods).items()} if pods else {}
    releases: Counter[str] = Counter()
    for release, content in (one for outcome in outcomes for one in outcome.conversion.argo_folders):
        releases[release] += 1
        of_release = folder / (release if releases[release] == 1 else f"{release}.{releases[release]}")
        written |= {of_release / name: text for name, text in content.items()}
    if not written:
        print("nothing to convert", file=sys.stderr)
    try:
        for path, text in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode(), mode=0o644)
            print(cell(path))
    except OSError as error:
        raise HostError(f"{folder} cannot be written: {error.strerror}") from error
