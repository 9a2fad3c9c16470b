"""Read the opaque parameters of claims and classes: what a user may ask of an agent that is root.

``{apiVersion: drabridge/v1alpha1, kind: DeviceConfig, profile: NAME, env: {NAME: value}}``. A profile is a name that
the node's configuration defines; a variable must be on the configuration's list. There is no way to write a host path
or a command. Everything is checked before anything is done.

Precedence, lowest first: the resource's default profile, entries from the class in list order, entries from the claim
in list order. The last entry that applies to a device gives all variables; an entry without a profile keeps the one
that was chosen before, and after a class's ``mandatory: true`` no entry may choose another.

An agent with the name of NVIDIA's DRA driver understands that driver's kinds as well, with its precedence. For each
device one entry counts: the last one that names the device's request, or that names no request and is for the device's
type. Only that entry must be possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.claims import ClaimConfig
from drabridge.dra import nvidia_config
from drabridge.dra.allocation import AllocationResult
from drabridge.dra.nvidia_config import NvidiaConfig
from drabridge.errors import ConfigError
from drabridge.kube.json_reader import AmbiguousObject
from drabridge.system.untrusted import cut, reading

API_VERSION = "drabridge/v1alpha1"
KIND = "DeviceConfig"
_KEYS = frozenset({"apiVersion", "kind", "profile", "env", "mandatory"})
_SOURCES = ("FromClass", "FromClaim")  # in ascending precedence
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class Choice(Struct, frozen=True):
    """What was chosen for one device: a profile ("" for none) and environment variables."""

    profile: str = ""
    env: Mapping[str, str] = {}


class ParameterEntry(Struct, frozen=True):
    """One decoded entry of this driver. ``requests`` empty: for every device that it can be applied to."""

    where: str  # for people: "FromClaim, config[1]"
    trusted: bool  # it came from the class
    requests: tuple[str, ...]
    choice: Choice = Choice()
    mandatory: bool = False  # no later entry may choose another profile
    nvidia: NvidiaConfig | None = None  # set instead of a choice

    def names(self, result: AllocationResult) -> bool:
        """Whether the entry names this result's request."""
        return result.request in self.requests or result.base_request in self.requests


def resolve(
    config: Sequence[Mapping[str, Any]],
    results: Sequence[AllocationResult],
    claim_config: Callable[[AllocationResult], ClaimConfig],
    driver: str,
    device_type: Callable[[AllocationResult], str] = lambda _: "",
) -> tuple[Choice, ...]:
    """Choose profile and variables for each result, in order.

    ``config`` is ``status.allocation.devices.config``, other drivers' entries included; ``claim_config`` gives the
    rules of a result's resource, ``device_type`` the attribute ``type`` of its device. Raises ConfigError that names
    the entry, the field and the request.
    """
    choices = [Choice(claim_config(result).default_profile or "") for result in results]
    fixed = [False] * len(results)
    with reading("claim configuration", ConfigError):
        entries = sorted(decode(config, driver), key=lambda entry: not entry.trusted)
    for entry in entries:
        if entry.nvidia is not None:
            continue
        refusals = []
        applied = False
        for index, result in enumerate(results):
            if entry.requests and not entry.names(result):
                continue
            kept, wanted = choices[index].profile, entry.choice.profile
            refusal = _refusal(entry, claim_config(result))
            if fixed[index] and wanted not in ("", kept):
                refusal = f"parameters.profile: the class demands the profile {kept!r}, found {cut(wanted)!r}"
            if not refusal:
                choices[index], applied = Choice(wanted or kept, entry.choice.env), True
                fixed[index] |= entry.mandatory
            elif entry.requests:
                raise _error(entry, f"{refusal} (request {result.request!r}, device {result.device})")
            else:
                refusals.append(refusal)
        if refusals and not applied:
            raise _error(entry, refusals[0])
    nvidia = [entry for entry in entries if entry.nvidia is not None]
    for index, result in enumerate(results if nvidia else ()):
        profile = _nvidia_profile(nvidia, result, device_type(result), claim_config(result))
        if profile and fixed[index] and profile != choices[index].profile:
            raise ConfigError(f"the class demands the profile {choices[index].profile!r}, the claim needs {profile!r}")
        choices[index] = replace(choices[index], profile=profile or choices[index].profile)
    return tuple(choices)


def _nvidia_profile(
    entries: Sequence[ParameterEntry], result: AllocationResult, device_type: str, rules: ClaimConfig
) -> str:
    """Return the profile that NVIDIA's parameters of a result need; "" for none. Raises ConfigError."""
    for entry in reversed(entries):
        if entry.nvidia is None or (entry.requests and not entry.names(result)):
            continue
        if entry.nvidia.device_type == device_type:
            try:
                profile = nvidia_config.profile_of(entry.nvidia)
                if profile and profile not in rules.profiles:
                    raise ValueError(nvidia_config.without_profile(profile))
            except ValueError as error:
                raise _error(entry, f"{error} (request {result.request!r}, device {result.device})") from None
            return profile
        if entry.requests:
            what = f"cannot apply {entry.nvidia.kind} to device {result.device!r} of type {device_type!r}"
            raise _error(entry, f"{what} (request: {result.request})")
    return ""


def decode(config: Iterable[Mapping[str, Any]], driver: str) -> Iterator[ParameterEntry]:
    """Decode this driver's entries strictly: an unknown or repeated key is an error. Raises ConfigError."""
    for index, raw in enumerate(config):
        source = raw.get("source")
        where = f"{source}, config[{index}]"
        opaque = raw.get("opaque")
        if not isinstance(opaque, Mapping) or source not in _SOURCES:
            raise ConfigError(
                f"claim configuration {where} is of a form that this agent does not know",
                hint="Only opaque parameters from a claim or a class are understood; a newer agent may be needed",
            )
        if opaque.get("driver") != driver:
            continue
        requests = tuple(str(name) for name in raw.get("requests") or ())
        parameters = opaque.get("parameters")
        if (
            driver == nvidia_config.DRIVER
            and isinstance(parameters, Mapping)
            and "resource.nvidia.com/" in str(parameters.get("apiVersion"))
        ):
            try:
                nvidia = nvidia_config.decode(parameters)
            except ValueError as error:
                raise ConfigError(f"claim configuration {where}: parameters: {error}") from None
            yield ParameterEntry(where, source == "FromClass", requests, nvidia=nvidia)
            continue
        choice, mandatory = _choice(where, parameters)
        if mandatory and source != "FromClass":
            raise ConfigError(
                f"claim configuration {where}: parameters.mandatory: only a DeviceClass can demand a profile"
            )
        yield ParameterEntry(where, source == "FromClass", requests, choice, mandatory)


def _choice(where: str, parameters: Any) -> tuple[Choice, bool]:
    def wrong(path: str, problem: str) -> ConfigError:
        return ConfigError(f"claim configuration {where}: parameters{path}: {problem}")

    if not isinstance(parameters, Mapping):
        raise wrong("", "an object was expected")
    for path, value in (("", parameters), (".env", parameters.get("env"))):
        if isinstance(value, AmbiguousObject):
            raise wrong(path, f"the key {value.duplicates[0]!r} is given twice")
    kind = (parameters.get("apiVersion"), parameters.get("kind"))
    if kind != (API_VERSION, KIND):
        found = " and ".join(cut(repr(one)) for one in kind)
        raise wrong("", f"apiVersion {API_VERSION} and kind {KIND} were expected, found {found}")
    unknown = sorted(set(map(str, parameters)) - _KEYS)
    if unknown:
        raise wrong(f".{cut(unknown[0])}", f"an unknown key; known are {', '.join(sorted(_KEYS))}")
    profile = parameters.get("profile", "")
    if not isinstance(profile, str):
        raise wrong(".profile", f"the name of a profile was expected, found {cut(repr(profile))}")
    env = parameters.get("env", {})
    if not isinstance(env, Mapping):
        raise wrong(".env", f"an object of text values was expected, found {cut(repr(env))}")
    for name, value in env.items():
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            raise wrong(f".env[{cut(repr(name))}]", "not the name of an environment variable")
        if not isinstance(value, str) or "\0" in value:
            raise wrong(f".env[{name!r}]", f"text was expected, found {cut(repr(value))}; quote numbers")
    mandatory = parameters.get("mandatory", False)
    if not isinstance(mandatory, bool):
        raise wrong(".mandatory", f"true or false was expected, found {cut(repr(mandatory))}")
    return Choice(profile, dict(env)), mandatory


def _refusal(entry: ParameterEntry, rules: ClaimConfig) -> str:
    """Say why the configuration of the device's resource does not allow the entry; "" if it does."""
    profile = entry.choice.profile
    if profile and profile not in rules.profiles:
        return f"parameters.profile: there is no profile {cut(profile)!r}; known are {_names(rules.profiles)}"
    if entry.trusted and rules.trust_class_parameters:
        return ""
    forbidden = sorted(set(entry.choice.env) - set(rules.env))
    if forbidden:
        return f"parameters.env[{forbidden[0]!r}]: not a variable that may be set; allowed are {_names(rules.env)}"
    return ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none (the node's configuration lists them under claimConfig)"


def _error(entry: ParameterEntry, text: str) -> ConfigError:
    return ConfigError(f"claim configuration {entry.where}: {text}")
