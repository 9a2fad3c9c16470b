"""Do the steps of a plan, one by one, and undo them. Each can be interrupted anywhere, and done again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, ConflictError, DeniedError, InvalidError, NotFoundError, served_version
from drabridge.migrate.apply import manifests
from drabridge.migrate.apply.lanes import LaneKeeper
from drabridge.migrate.apply.state import FileBefore, Progress, Record, State, now
from drabridge.migrate.apply.waiting import Tell, Waiting, find, kind_of, restart, split, wait
from drabridge.migrate.installers import Installer, Key, installer_of, operator_of
from drabridge.migrate.plan.build import cluster_id, demands_of, require_whole
from drabridge.migrate.plan.document import How, Move, Plan, Step, Way, beside
from drabridge.migrate.plan.packing import Demand
from drabridge.migrate.plan.text import lanes_words
from drabridge.migrate.report.collect import collect
from drabridge.migrate.report.document import number
from drabridge.migrate.report.readers import NAMESPACES, claim_templates, is_built_in, maker_of_pods, pod_limits
from drabridge.migrate.switch import marks
from drabridge.migrate.switch.switcher import Choice, to_claims, to_limits

# --- one object -----------------------------------------------------------------------------------------------------


def merged(live: Any, before: Any, after: Any) -> Any:
    """Return ``live`` with the differences from ``before`` to ``after``: a three-way merge, as in ``kubectl apply``.

    List items are matched by their ``name``.
    """
    if before == after:
        return live
    if isinstance(before, dict) and isinstance(after, dict) and isinstance(live, dict):
        found = {key: value for key, value in live.items() if key not in before or key in after}
        for key, value in after.items():
            if key not in before or key not in live:
                found[key] = merged(live[key], None, value) if key in live and key not in before else value
            else:
                found[key] = merged(live[key], before[key], value)
        return found
    if _named(before) and _named(after) and _named(live):
        return _merged_lists(live, before, after)
    return after


def _merged_lists(live: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    olds, news = ({one["name"]: one for one in items} for items in (before, after))
    kept = [one for one in live if one["name"] not in olds or one["name"] in news]
    there = {one["name"] for one in kept}
    return [
        *(merged(one, olds.get(one["name"]), news[one["name"]]) if one["name"] in news else one for one in kept),
        *(one for one in after if one["name"] not in there),
    ]


def _named(items: object) -> bool:
    return isinstance(items, list) and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in items)


# --- who changes it -------------------------------------------------------------------------------------------------


class Change(Struct, frozen=True):
    """How a step changes a workload: the manifest, the workload's owner, and whether the manifest is the owner's."""

    converted: manifests.Converted
    owner: Installer | None
    of_owner: bool

    @property
    def by_helm(self) -> bool:
        """Return whether a release of Helm must be upgraded with a patch, because nothing brings the manifest."""
        return self.owner is not None and not (self.of_owner or self.owner.from_git)


class Owners:
    """What owns the workloads of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Key, Installer | None] = {}  # cache, for later steps

    async def change(self, step: Step, move: Move, found: manifests.Manifests) -> Change | None:
        """Return how a workload is changed: by its own manifest, else by its owner's; None if there is neither."""
        owner = await self.installer(step, move)
        own = _key(step, move)
        if own in found.objects:
            return Change(found.objects[own], owner, of_owner=False)
        key = None if owner is None else owner.manifest_in(found.objects)
        return None if key is None else Change(found.objects[key], owner, of_owner=True)

    async def installer(self, step: Step, move: Move) -> Installer | None:
        """Return what owns a live object, and would undo a change of it."""
        if not can_change(move):
            return operator_of(split(move.object)[0])
        live = await find(self._cluster, step.namespace, move.object)
        return None if live is None else installer_of(live["metadata"])

    async def keys(self, step: Step, found: manifests.Manifests) -> set[Key]:
        """Return the objects that a step changes: its workloads, or their owners."""
        keys: set[Key] = set()
        for move in step.moves:
            own = _key(step, move)
            if own not in found.objects and own not in self._known:
                self._known[own] = await self.installer(step, move)
            owner = self._known.get(own)
            keys.add((owner.manifest_in(found.objects) if owner is not None else None) or own)
        return keys


def can_change(move: Move) -> bool:
    """Whether a workload is of a built-in kind: the others are changed by their operators."""
    return is_built_in(split(move.object)[0])


def _key(step: Step, move: Move) -> Key:
    return (step.namespace, *split(move.object))


# --- the steps ------------------------------------------------------------------------------------------------------

_TRIES = 5  # attempts to write an object: on a conflict it is read again


class Options(Struct, frozen=True):
    """How steps are done. ``wait_seconds``: limit for each wait for others.

    ``lanes_only``: somebody else changes what pods ask for. ``wait_for_manifests``: wait until that change is seen.
    """

    wait_seconds: float = 1800.0
    lanes_only: bool = False
    wait_for_manifests: bool = False


class Runner:
    """Follows one plan. ``folder``: where the plan is, for the manifests that it names."""

    def __init__(self, cluster: Cluster, plan: Plan, state: State, folder: Path, options: Options, tell: Tell) -> None:
        self._cluster = cluster
        self._plan = plan
        self._state = state
        self._folder = folder
        self._options = options
        self._tell = tell
        self._owners = Owners(cluster)

    async def check(self) -> None:
        """Raise ClusterError if this is not the plan's cluster."""
        found = await cluster_id(self._cluster)
        if found != self._plan.cluster:
            raise ClusterError(
                f"the plan is of another cluster: kube-system has the UID {found}, the plan says {self._plan.cluster}",
                hint="Choose the cluster with --context, or plan again",
            )

    # --- forth ------------------------------------------------------------------------------------------------------

    async def apply(self, step: Step) -> None:
        """Do a step: lanes, what pods ask for, rollouts. Raises DrabridgeError if something differs from the plan."""
        waiting = self._waiting(step)
        version, lanes = await self._lanes()
        if self._state.of(step) is None:
            await self._begin(step, lanes, version, waiting)
        record = self._state.begin(step)
        if record.progress is Progress.GOING_BACK:
            raise ClusterError(f"step {step.name} is going back", hint="Finish that first: drabridge migrate rollback")
        if step.lanes:
            await lanes.ask(step.lanes, record.annotations)
            waiting.say("lanes", f"devices for claims: {lanes_words(step.lanes)}")
            await lanes.wait(step.lanes, waiting)
        if self._options.lanes_only and step.way is not Way.LANES:
            await self._by_others(step, waiting)
        elif step.way is Way.SWITCH:
            await self._switch(step, record, waiting)
            await self._roll(step, step.moves, record.restarts, waiting)
        elif step.way is Way.MANIFESTS:
            await self._convert(step, record, version, waiting)
            await self._roll(step, step.moves, {}, waiting)
        self._state.set(step, Progress.DONE)
        waiting.say("step", "done")

    async def _begin(self, step: Step, lanes: LaneKeeper, version: str, waiting: Waiting) -> None:
        """Check that the cluster is as the step expects, and record the state before the step."""
        if step.missing:
            raise ClusterError(
                f"step {step.name} does not fit: {step.missing[0]}",
                hint=f"Mend that and plan again, or take `missing` out of step {step.name} if you know better",
            )
        if step.moves:
            there = {(one.namespace, one.object): one for one in await self._demands()}
            _check_moves(step, there)
        annotations = await lanes.annotations(step.lanes)
        await lanes.wait_for_devices(step.lanes, waiting)
        if step.way is Way.SWITCH:
            await self._is_switched(step.namespace)
        elif step.way is Way.MANIFESTS and not self._options.lanes_only:
            await self._dry_run(step, version)
        record = self._state.begin(step)
        record.annotations = annotations
        self._state.save()

    async def _is_switched(self, namespace: str) -> bool:
        """Whether all of a namespace is switched. Raises ClusterError if only a part is, or if it does not exist."""
        try:
            meta = (await self._cluster.get(NAMESPACES, namespace))["metadata"]
        except NotFoundError as error:
            raise ClusterError(f"there is no namespace {namespace}", hint="Plan again") from error
        if (meta.get("labels") or {}).get(marks.LABEL) != marks.CLAIMS:
            return False
        notes = meta.get("annotations") or {}
        if notes.get(marks.PERCENT) or notes.get(marks.SELECTOR):
            raise ClusterError(
                f"a part of namespace {namespace} is switched already",
                hint=f"drabridge migrate switch {namespace} --to limits, or --to claims for all of it",
            )
        return True

    async def _switch(self, step: Step, record: Record, waiting: Waiting) -> None:
        if not record.switches and not await self._is_switched(step.namespace):
            record.switches = True
            self._state.save()
        unseen = frozenset(move.devices for move in step.moves if move.how is How.BY_HAND)  # their templates are not
        choice = Choice({self._plan.resource: self._plan.device_class}, unseen)
        await to_claims(self._cluster, [step.namespace], choice, lambda line: waiting.say("switch", line))

    async def _dry_run(self, step: Step, version: str) -> None:
        """Make a dry run of every change of the step. Raises ClusterError."""
        found = manifests.of_plan(self._plan, self._folder)
        for move in step.moves:
            change = await self._owners.change(step, move, found)
            if change is None:
                raise _no_manifest(step, move)
            if change.of_owner or not can_change(move):
                continue  # its owner makes the change
            converted = change.converted
            try:
                for template in converted.templates:
                    await self._template(template, step.namespace, version, dry_run=True)
                await self._bring(step.namespace, move, converted.before, converted.after, dry_run=True)
            except (InvalidError, DeniedError) as error:
                words = "the API server would refuse the converted manifest"
                raise ClusterError(
                    f"{step.namespace}/{move.object}: {words}: {error.message}",
                    hint="Nothing was changed. Mend the manifest, or take the workload out of the plan",
                ) from error

    async def _convert(self, step: Step, record: Record, version: str, waiting: Waiting) -> None:
        """Make the templates, then bring each manifest's changes to the cluster, then to its file."""
        record.converts = True
        self._state.save()
        found = manifests.of_plan(self._plan, self._folder)
        written = [self._folder / one.path for one in record.files]
        for_helm: dict[str, list[manifests.Converted]] = {}
        for move in step.moves:
            change = await self._owners.change(step, move, found)
            if change is None:
                if any(path.exists() for path in written):  # an earlier try was interrupted after it wrote the file
                    continue
                raise _no_manifest(step, move)
            converted, owner = change.converted, change.owner
            if owner is not None and change.by_helm:
                for_helm.setdefault(owner.words, []).append(converted)
                continue
            if owner is not None:
                await self._write_when_all_are_done(step, record, converted.path, found, waiting)
                do = "commit" if can_change(move) else "kubectl apply -f"
                waiting.say(move.object, f"{do} {converted.path.name}: {owner.words} brings it to the cluster")
                continue
            for template in converted.templates:
                await self._template(template, step.namespace, version)
            if await self._bring(step.namespace, move, converted.before, converted.after):
                waiting.say(move.object, "has the converted manifest")
            await self._write_when_all_are_done(step, record, converted.path, found, waiting)
        for words, some in for_helm.items():
            folder = self._write_for_helm(record, words, some)
            waiting.say(words, f"upgrade it with {folder}/: its first lines say how")
        await self._until_brought(step, waiting)

    def _write_for_helm(self, record: Record, words: str, changed: Sequence[manifests.Converted]) -> str:
        """Write the folder for the upgrade of a Helm release; return its name. Raises HostError."""
        folder = manifests.folder_of(words)
        for name, text in manifests.files_for_helm(words, changed).items():
            self._write(record, self._folder / folder / name, "", text)
        return folder

    def _write(self, record: Record, path: Path, before: str, after: str) -> str:
        """Record a file's old text, then overwrite it; return its name. Raises HostError."""
        name = beside(path, self._folder)
        if not any(one.path == name for one in record.files):
            record.files.append(FileBefore(name, before, after))
            self._state.save()
        manifests.write(path, after)
        return name

    async def _until_brought(self, step: Step, waiting: Waiting) -> None:
        """Wait until the owners of the step's objects have installed the converted manifests in the cluster."""

        async def lacking() -> str:
            left: list[str] = []
            custom = [move for move in step.moves if not can_change(move)]
            there = {(one.namespace, one.object) for one in await self._demands()} if custom else set()
            left += [move.object for move in custom if (step.namespace, move.object) in there]
            for move in step.moves:
                if move in custom:
                    continue
                live = await find(self._cluster, step.namespace, move.object)
                if live is not None and installer_of(live["metadata"]) is not None:
                    pod = (maker_of_pods(live["spec"]).get("template") or {}).get("spec") or {}
                    left += [move.object for name, _ in pod_limits(pod) if name == self._plan.resource]
            return f"{', '.join(left)} still with limits in the cluster" if left else ""

        await waiting.until("manifests", lacking)

    async def _template(
        self, template: Mapping[str, Any], namespace: str, version: str, *, dry_run: bool = False
    ) -> None:
        kind = claim_templates(version)
        body = {**template, "apiVersion": f"{kind.group}/{version}"}
        with suppress(ConflictError):  # it exists; a template of this name asks for the same
            await self._cluster.create(kind, body, namespace=namespace, dry_run=dry_run)

    async def _bring(self, namespace: str, move: Move, before: Any, after: Any, *, dry_run: bool = False) -> bool:
        """Apply the difference of two manifests to the live object; return whether the object changed."""
        where = kind_of(split(move.object)[0])
        for turn in range(_TRIES):
            live = await find(self._cluster, namespace, move.object)
            if live is None:
                raise ClusterError(f"there is no {namespace}/{move.object}", hint="Plan again")
            wanted = merged(live, before, after)
            if wanted == live:
                return False
            try:
                await self._cluster.replace(where, wanted, namespace=namespace, dry_run=dry_run)
                return True
            except ConflictError:
                if turn == _TRIES - 1:
                    raise
        raise AssertionError("the last turn returns or raises")

    async def _write_when_all_are_done(
        self, step: Step, record: Record, path: Path, found: manifests.Manifests, waiting: Waiting
    ) -> None:
        """Write a converted file once no other step needs the old text. Raises HostError."""
        to_come: set[Key] = set()
        for other in self._plan.steps:
            known = self._state.of(other)
            if other.way is Way.MANIFESTS and not (known and known.progress is Progress.DONE) and other != step:
                to_come |= await self._owners.keys(other, found)
        to_come -= await self._owners.keys(step, found)
        if any(key in to_come for key, one in found.objects.items() if one.path == path):
            return
        waiting.say(self._write(record, path, *found.texts[path]), "converted")

    async def _by_others(self, step: Step, waiting: Waiting) -> None:
        if not self._options.wait_for_manifests:
            waiting.say("manifests", "are yours to change now, in your repository")
            return

        async def lacking() -> str:
            there = {(one.namespace, one.object) for one in await self._demands()}
            left = [move.object for move in step.moves if (step.namespace, move.object) in there]
            return f"{', '.join(left)} still with limits" if left else ""

        await waiting.until("manifests", lacking)

    # --- back -------------------------------------------------------------------------------------------------------

    async def undo(self, step: Step) -> None:
        """Undo a step: lanes, what pods ask for, rollouts. Raises DrabridgeError if that is impossible.

        It does not wait for the lanes: agents move devices as soon as these are free, and new pods wait for them.
        """
        record = self._state.of(step)
        if record is None:
            return
        waiting = self._waiting(step)
        _, lanes = await self._lanes()
        self._state.set(step, Progress.GOING_BACK)
        for name, text in record.annotations.items():
            await lanes.annotate(name, text)
        if record.annotations:
            waiting.say("lanes", "as they were")
        if record.switches:
            await to_limits(self._cluster, [step.namespace], lambda line: waiting.say("switch", line))
            rolled_out = [move for move in step.moves if move.object in record.restarts]
            await self._roll(step, rolled_out, record.undo_restarts, waiting)
        if record.converts:
            await self._convert_back(step, record, waiting)
            await self._roll(step, step.moves, {}, waiting)
        await lanes.wait(lanes.asked(record.annotations), waiting)
        self._state.forget(step)
        waiting.say("step", "undone")

    async def _convert_back(self, step: Step, record: Record, waiting: Waiting) -> None:
        """Restore the manifests in their files, then in the cluster. Raises ConfigError and HostError."""
        manifests.restore(self._plan, self._folder, record.files, waiting.say)
        found = manifests.of_plan(self._plan, self._folder)
        for move in step.moves:
            change = await self._owners.change(step, move, found)
            if change is None:
                raise ClusterError(f"no manifest makes {step.namespace}/{move.object} any more")
            if (owner := change.owner) is not None:
                do = "upgrade without the folder" if change.by_helm else "commit its manifest"
                waiting.say(move.object, f"{do}: {owner.words} brings it to the cluster")
                continue
            if await self._bring(step.namespace, move, change.converted.after, change.converted.before):
                waiting.say(move.object, "has its manifest as it was")

    # --- both -------------------------------------------------------------------------------------------------------

    async def _roll(self, step: Step, moves: Sequence[Move], restarts: dict[str, str], waiting: Waiting) -> None:
        """Roll workloads out, one after the other.

        ``restarts`` are recorded with the step. If manifests changed, that change itself starts the rollouts.
        """
        for move in moves:
            if move.how is not How.ROLLOUT:
                if move.how is not How.NEXT:
                    waiting.say(move.object, "is not rolled out: its pods stay as they are until they end")
                continue
            if await find(self._cluster, step.namespace, move.object) is None:
                waiting.say(move.object, "is gone")
                continue
            if step.way is Way.SWITCH:
                if move.object not in restarts:
                    restarts[move.object] = now()
                    self._state.save()
                await restart(self._cluster, step.namespace, move.object, restarts[move.object])
            await wait(self._cluster, step.namespace, move.object, waiting)
            waiting.say(move.object, "rolled out")

    async def _demands(self) -> list[Demand]:
        facts = await collect(self._cluster, lambda kind, count: None)
        require_whole(facts)
        return list(demands_of(facts, self._plan.resource))

    async def _lanes(self) -> tuple[str, LaneKeeper]:
        version = await served_version(self._cluster)
        if not version:
            raise ClusterError(
                "this API server serves no claims", hint="Kubernetes 1.34 and later have resource.k8s.io/v1"
            )
        return version, LaneKeeper(self._cluster, self._plan, version)

    def _waiting(self, step: Step) -> Waiting:
        return Waiting(step.name, self._tell, self._options.wait_seconds)


def _check_moves(step: Step, there: Mapping[tuple[str, str], Demand]) -> None:
    """Raise ClusterError if the step's workloads differ from those in the plan."""
    problems: list[str] = []
    planned = {move.object: move for move in step.moves}
    for name, move in planned.items():
        found = there.get((step.namespace, name))
        if found is not None and found.devices != move.devices:
            problems.append(f"{name} has {number(found.devices, 'device')} each, and had {move.devices}")
        elif found is not None and len(found.on) > move.pods:
            problems.append(f"{name} has {number(len(found.on), 'pod')}, and had {move.pods}")
    if step.way is Way.SWITCH:
        new = sorted(name for namespace, name in there if namespace == step.namespace and name not in planned)
        problems += [f"{name} is new" for name in new if not name.startswith("DaemonSet/")]
    if problems:
        raise ClusterError(
            f"namespace {step.namespace} has changed since the plan was made: {'; '.join(problems)}",
            hint="Plan again; steps that are done stay done",
        )


def _no_manifest(step: Step, move: Move) -> ClusterError:
    return ClusterError(
        f"no manifest makes {step.namespace}/{move.object} any more, or it has no limits",
        hint="Plan again, with --manifests where they are now",
    )


def next_step(plan: Plan, state: State) -> Step | None:
    """Return the first step that is not done."""
    for step in plan.steps:
        record = state.of(step)
        if record is None or record.progress is not Progress.DONE:
            return step
    return None


def undoable(plan: Plan, state: State) -> Sequence[Step]:
    """Return the steps that were begun, latest first."""
    return [step for step in reversed(plan.steps) if state.of(step) is not None]
