"""The commands about devices and configuration, on this machine's memory devices, with no agent running."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from drabridge.cli import main
from drabridge.cli.output import error_text
from drabridge.config import load
from drabridge.errors import HostError

CONFIG = """\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: mem.example.com
resources:
- name: example.com/mem
  match: [{subsystem: mem, sysname: [zero, "null"]}]
  id: ["{sysname}"]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return str(path)


Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml"])
def test_devices_in_every_format(file: str, output: str, capsys: Output) -> None:
    assert main(["devices", "-c", file, "-o", output]) == 0
    out, err = capsys.readouterr()
    if output in ("json", "yaml"):
        rows = json.loads(out) if output == "json" else yaml.safe_load(out)
        assert [(row["name"], row["presence"], row["nodes"]) for row in rows] == [
            ("null", "present", ["/dev/null"]),
            ("zero", "present", ["/dev/zero"]),
        ]
    else:
        head, *lines = out.splitlines()
        assert head.split()[:3] == ["RESOURCE", "NAME", "PRESENCE"]
        assert [line.split()[1] for line in lines] == ["null", "zero"]
        assert ("SYSPATH" in head) is (output == "wide")
        assert "events: " in err  # which kind was chosen, and why


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{attr:none}", 'have no identity. No identity template gives it a value: add "{sysname}"'),
        ("{subsystem}", "all resolve"),
    ],
)
def test_devices_that_match_and_are_not_offered(tmp_path: Path, capsys: Output, template: str, why: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("{sysname}", template))
    assert main(["devices", "-c", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "no device matches" not in out + err
    assert "(example.com/mem); devices that match and have no identity of their own: 2" in out + err
    assert why in err
    assert "{sysname}" in err, "what to write instead"
    path.write_text(CONFIG.replace("{sysname}", template).replace('[zero, "null"]', "nothing"))
    main(["devices", "-c", str(path)])
    assert "no device matches (example.com/mem)" in "".join(capsys.readouterr())


def test_devices_of_an_unknown_resource(file: str, capsys: Output) -> None:
    assert main(["devices", "-c", file, "--resource", "example.com/none"]) == 2
    assert "no resource example.com/none. It has example.com/mem" in capsys.readouterr().err


def test_match_lists_what_matches_and_with_all_what_does_not(file: str, capsys: Output) -> None:
    assert main(["match", "-c", file, "-o", "json"]) == 0
    assert {row["device"] for row in json.loads(capsys.readouterr().out)} == {"null", "zero"}
    assert main(["match", "-c", file, "--all", "-o", "json"]) == 0
    rows = {row["device"]: row["matches"] for row in json.loads(capsys.readouterr().out)}
    assert rows["zero"]
    assert not rows["full"]


def test_match_explains_every_predicate(file: str, capsys: Output) -> None:
    assert main(["match", "-c", file, "--explain", "/dev/full"]) in (0, 1)
    out = capsys.readouterr().out
    assert '✓ subsystem is "mem"' in out
    assert '✗ sysname is "zero" or "null", found "full"' in out


def test_a_suggestion_is_a_configuration_that_matches_the_device(tmp_path: Path, capsys: Output) -> None:
    assert main(["suggest", "/dev/full"]) == 0
    path = tmp_path / "suggested.yaml"
    path.write_text(capsys.readouterr().out)
    load(path)
    assert main(["devices", "-c", str(path), "-o", "json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)
    assert device["nodes"] == ["/dev/full"]


def test_what_a_machine_could_offer_is_listed(capsys: Output) -> None:
    assert main(["suggest", "--all", "-o", "json"]) == 0
    assert all(one["resource"].startswith("example.com/") for one in json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("command", ["suggest", "record"])
def test_an_unknown_device_is_an_error_of_one_sentence(command: str, capsys: Output) -> None:
    assert main([command, "/dev/there-is-no-such-node"]) == 1
    err = capsys.readouterr().err
    assert "/dev/there-is-no-such-node" in err
    assert "Traceback" not in err


def test_a_record_is_a_umockdev_description(tmp_path: Path, file: str) -> None:
    out = tmp_path / "machine.umockdev"
    assert main(["record", "-c", file, "-o", str(out)]) == 0
    blocks = out.read_text().strip().split("\n\n")
    paths = [block.splitlines()[0] for block in blocks]
    assert {"P: /devices/virtual/mem/null", "P: /devices/virtual/mem/zero"} <= set(paths)
    assert all("E: SUBSYSTEM=" in block or "A: " in block for block in blocks)


@pytest.mark.parametrize("name", ["no/such/folder", "."])
def test_a_file_that_cannot_be_written_is_an_error_of_one_sentence(
    tmp_path: Path, file: str, name: str, capsys: Output
) -> None:
    assert main(["record", "-c", file, "-o", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith(f"drabridge: {tmp_path / name}: ")


def test_a_share_of_thousands_of_digits_is_asked_for_as_it_is(tmp_path: Path, capsys: Output) -> None:
    assert main(["lanes", "set", "example.com/mem", f"dra={'9' * 5000}", "--socket", str(tmp_path / "no.sock")]) == 1
    assert "there is no socket" in capsys.readouterr().err


def test_a_full_disk_is_an_error_of_one_sentence(file: str) -> None:
    command = [sys.executable, "-m", "drabridge", "check-config", file]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "drabridge: No space left on device\n")


@pytest.mark.parametrize("source", ["generic-device-plugin", "nvidia-device-plugin", "sriov-network-device-plugin"])
def test_an_import_reads_no_device_and_no_pipe(tmp_path: Path, source: str, capsys: Output) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        assert main(["check-config", "--from", source, path]) == 2
        assert "it is no regular file" in capsys.readouterr().err


def test_check_config_says_every_fault_with_its_place_and_ends_with_2(
    tmp_path: Path, file: str, capsys: Output
) -> None:
    assert main(["check-config", file]) == main(["check-config", "-c", file]) == 0
    assert capsys.readouterr().out.count(": fine (1 resources: ") == 2
    bad = tmp_path / "bad.yaml"
    bad.write_text(CONFIG.replace("subsystem", "subsystm").replace("name: example.com", "name: Example com"))
    assert main(["check-config", str(bad)]) == 2
    said = "".join(capsys.readouterr())
    assert f"{bad}:6:22: resources[0].match[0].subsystm: found the key subsystm" in said
    assert 'did you mean "subsystem"?' in said
    assert f"{bad}:5:9: resources[0].name" in said


def test_check_config_prints_a_schema_and_imports(tmp_path: Path, capsys: Output) -> None:
    assert main(["check-config", "--json-schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["resources"]
    foreign = tmp_path / "generic.yaml"
    foreign.write_text("devices:\n- name: fuse\n  groups:\n  - count: 10\n    paths: [{path: /dev/fuse}]\n")
    assert main(["check-config", "--from", "generic-device-plugin", str(foreign)]) == 0
    ours = tmp_path / "ours.yaml"
    ours.write_text(capsys.readouterr().out)
    (resource,) = load(ours).resources
    assert (resource.name, resource.replicas.count) == ("squat.ai/fuse", 10)
    foreign.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n")
    assert main(["check-config", "--from", "nvidia-device-plugin", str(foreign)]) == 0
    ours.write_text(capsys.readouterr().out)
    assert load(ours).resources[0].replicas.count == 4
    foreign.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replica: 4}]}}\n")
    assert main(["check-config", "--from", "nvidia-device-plugin", str(foreign)]) == 2
    assert f"{foreign}:1:69: sharing.timeSlicing.resources[0].replica: " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "lanes"])
def test_without_an_agent_the_error_says_where_one_was_looked_for(command: str, tmp_path: Path, capsys: Output) -> None:
    assert main([command, "--socket", str(tmp_path / "control.sock")]) == 1
    assert f"there is no socket {tmp_path}/control.sock. Is the agent running?" in capsys.readouterr().err


def test_an_error_fits_the_terminal_and_its_names_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path = f"/var/lib/kubelet/{'x' * 90}/control.sock"
    faults = HostError(f"{'the ledger cannot be written ' * 5}\nin {path}")
    monkeypatch.setenv("COLUMNS", "80")
    assert len(error_text(faults).splitlines()) == 2  # a file may be as wide as it likes
    monkeypatch.setattr("sys.stderr", Terminal())
    said = error_text(faults).splitlines()
    assert [len(line) > 80 for line in said] == [path in line for line in said]
    assert " ".join(" ".join(said).split()) == " ".join(f"drabridge: {faults}".split())
