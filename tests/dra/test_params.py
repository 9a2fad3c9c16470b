"""Opaque parameters: strict, matched to requests, and never more than the node's configuration allows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drabridge.config.claims import ClaimConfig, Profile
from drabridge.dra.allocation import AllocationResult
from drabridge.dra.params import Choice, resolve
from drabridge.errors import ConfigError
from drabridge.kube.json_reader import decode as decode_json

DRIVER = "dra.example.com"
RULES = ClaimConfig(env=("MODE", "LEVEL"), profiles={"fast": Profile(), "safe": Profile()}, default_profile="safe")
STRICT = ClaimConfig()
GPU, LARGE = AllocationResult("gpu", "node-a", "gpu-0"), AllocationResult("any/large", "node-a", "gpu-1")


def entry(source: str = "FromClaim", requests: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def choose(
    *config: Any, results: tuple[AllocationResult, ...] = (GPU,), rules: ClaimConfig = RULES
) -> tuple[Choice, ...]:
    return resolve(config, results, lambda result: rules, DRIVER)


def test_without_parameters_the_default_profile_applies() -> None:
    assert choose() == (Choice("safe"),)
    assert choose(rules=STRICT) == (Choice(),)


@pytest.mark.parametrize("fields", [{}, {"profile": ""}, {"env": {"MODE": "1"}}])
def test_without_a_named_profile_the_administrators_applies(fields: dict[str, Any]) -> None:
    assert choose(entry(**fields))[0].profile == "safe"
    assert choose(entry("FromClass", profile="fast"), entry(**fields))[0].profile == "fast"


def test_a_class_can_make_a_profile_mandatory() -> None:
    demanded = entry("FromClass", profile="safe", mandatory=True)
    assert choose(demanded, entry(env={"MODE": "1"})) == (Choice("safe", {"MODE": "1"}),)
    assert choose(demanded, entry(profile="safe"))[0].profile == "safe"
    with pytest.raises(ConfigError, match="the class demands the profile 'safe', found 'fast'"):
        choose(demanded, entry(profile="fast"))
    assert choose(entry("FromClass", mandatory=True))[0].profile == "safe", "the resource's default"
    with pytest.raises(ConfigError, match="demands the profile 'safe'"):
        choose(entry("FromClass", mandatory=True), entry(requests=("gpu",), profile="fast"))
    with pytest.raises(ConfigError, match="only a DeviceClass"):
        choose(entry(mandatory=True))
    with pytest.raises(ConfigError, match="true or false was expected"):
        choose(entry("FromClass", mandatory="yes"))


def test_the_claim_wins_over_the_class_and_the_later_over_the_earlier() -> None:
    config = (
        entry(profile="fast", env={"MODE": "1"}),
        entry("FromClass", profile="safe", env={"MODE": "2"}),
        entry(env={"LEVEL": "3"}),
    )
    assert choose(*config) == (Choice("fast", {"LEVEL": "3"}),), "the last entry names no profile"
    assert choose(*config[:2]) == (Choice("fast", {"MODE": "1"}),)
    assert choose(config[1]) == (Choice("safe", {"MODE": "2"}),)


@pytest.mark.parametrize(("requests", "applies"), [(("any",), True), (("any/large",), True), (("any/small",), False)])
def test_a_request_is_matched_with_and_without_its_alternative(requests: tuple[str, ...], applies: bool) -> None:
    (choice,) = choose(entry(requests=requests, profile="fast"), results=(LARGE,))
    assert (choice.profile == "fast") is applies


def test_every_device_gets_its_own_choice() -> None:
    first, second = choose(entry(requests=("gpu",), profile="fast"), results=(GPU, LARGE))
    assert (first.profile, second.profile) == ("fast", "safe")


def test_entries_of_other_drivers_are_ignored() -> None:
    foreign = entry(nonsense=True)
    foreign["opaque"]["driver"] = "other.example.com"
    assert choose(foreign) == (Choice("safe"),)


def test_an_entry_for_everything_is_skipped_where_it_cannot_apply_but_not_everywhere() -> None:
    config = entry(profile="fast")
    by_device = {"gpu-0": RULES, "gpu-1": STRICT}
    choices = resolve((config,), (GPU, LARGE), lambda result: by_device[result.device], DRIVER)
    assert [choice.profile for choice in choices] == ["fast", ""]
    with pytest.raises(ConfigError, match="there is no profile 'fast'"):
        choose(config, rules=STRICT)
    with pytest.raises(ConfigError, match="request 'gpu', device gpu-0"):
        choose(entry(requests=("gpu",), profile="fast"), rules=STRICT)


def test_the_class_follows_the_same_rules_unless_it_is_trusted() -> None:
    config = entry("FromClass", env={"ANYTHING": "1"})
    with pytest.raises(ConfigError, match="not a variable that may be set; allowed are LEVEL, MODE"):
        choose(config)
    trusting = replace(RULES, trust_class_parameters=True)
    assert choose(config, rules=trusting) == (Choice("safe", {"ANYTHING": "1"}),)
    with pytest.raises(ConfigError, match="not a variable"):
        choose(entry(env={"ANYTHING": "1"}), rules=trusting)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"hostPath": "/"}, "parameters.hostPath: an unknown key; known are apiVersion, env, kind, mandatory, profile"),
        ({"kind": "Other"}, "apiVersion drabridge/v1alpha1 and kind DeviceConfig were expected"),
        ({"apiVersion": "drabridge/v2"}, "found 'drabridge/v2' and 'DeviceConfig'"),
        ({"profile": 3}, "parameters.profile: the name of a profile was expected, found 3"),
        ({"env": ["MODE=1"]}, "parameters.env: an object of text values was expected"),
        ({"env": {"MODE": 1}}, "parameters.env['MODE']: text was expected, found 1; quote numbers"),
        ({"env": {"MODE": True}}, "text was expected, found True"),
        ({"env": {"A=B": "1"}}, "not the name of an environment variable"),
        ({"env": {"MODE": "a\0b"}}, "text was expected"),
    ],
)
def test_an_error_is_reported_with_its_place(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(entry("FromClass"), entry(**fields))
    assert text in str(caught.value)
    assert "FromClaim, config[1]" in str(caught.value)


def test_a_key_given_twice_is_an_error_and_not_the_last_one() -> None:
    text = '{"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", "env": {"MODE": "1", "MODE": "2"}}'
    for parameters, key in ((text, "MODE"), (text.replace('"kind"', '"kind": "X", "kind"'), "kind")):
        config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": decode_json(parameters)}}
        with pytest.raises(ConfigError, match=f"the key '{key}' is given twice"):
            choose(config)


@pytest.mark.parametrize("raw", [{"source": "FromMoon", "opaque": {"driver": DRIVER}}, {"source": "FromClaim"}])
def test_an_unknown_kind_of_parameters_is_an_error(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="of a form that this agent does not know"):
        choose(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
KEYS = st.sampled_from(["apiVersion", "kind", "profile", "env", "command", "mounts", "mandatory"])
VALUES = JSON | st.sampled_from(["drabridge/v1alpha1", "DeviceConfig", "fast"]) | st.just({"MODE": "x"})


@given(st.dictionaries(KEYS, VALUES) | JSON, st.sampled_from(["FromClass", "FromClaim"]))
def test_any_user_input_is_refused_or_stays_within_the_rules(parameters: Any, source: str) -> None:
    config = {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}
    try:
        (choice,) = choose(config)
    except ConfigError:
        return
    assert choice.profile in ("", *RULES.profiles)
    assert set(choice.env) <= set(RULES.env)
    assert all(isinstance(value, str) for value in choice.env.values())
