"""``drabridge migrate convert``: what it prints, writes and returns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from drabridge.cli import main
from tests.migrate.convert.checks import CONVERT, RESOURCE, filtered

Output = pytest.CaptureFixture[str]
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
spec:
  nodeSelector:
    nvidia.com/gpu.product: Tesla-T4
  containers:
  - name: main
    image: busybox
    resources:
      limits:
        nvidia.com/gpu: 1  # one
"""
CONFIG = """\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: gpu.example.com
resources:
- name: nvidia.com/gpu
  match: [{subsystem: mem}]
  attributes: {productName: {from: driver}}
  deviceClass: {name: our-gpus}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest, and nothing else."""
    (tmp_path / "pod.yaml").write_text(POD)
    return tmp_path


def run(*arguments: object) -> int:
    return main([*CONVERT, *map(str, arguments)])


def test_a_file_is_printed_as_it_becomes(folder: Path, capsys: Output) -> None:
    assert run(*RESOURCE, folder / "pod.yaml") == 0
    out, err = capsys.readouterr()
    assert "      claims:\n      - name: gpu\n" in out
    assert "deviceClassName: gpu.example.com" in out
    assert err.startswith(f"note: {folder}/pod.yaml:7: Pod train: the node label nvidia.com/gpu.product is still asked")
    assert (folder / "pod.yaml").read_text() == POD


def test_the_agents_configuration_gives_class_and_selectors(folder: Path, capsys: Output) -> None:
    config = folder / "agent.conf"
    config.write_text(CONFIG)
    assert run("--config", config, folder / "pod.yaml") == 0
    out, err = capsys.readouterr()
    assert "deviceClassName: our-gpus" in out
    assert 'device.attributes["gpu.example.com"].productName.matches("(?i)^(Tesla[ -]T4)$")' in out
    assert err == ""


@pytest.mark.parametrize(("sharing", "code"), [("", 1), ("  sharing: {allowMultipleAllocations: true}\n", 0)])
def test_shares_need_claims_that_share(folder: Path, capsys: Output, sharing: str, code: int) -> None:
    config = folder / "agent.conf"
    config.write_text(f"{CONFIG}  replicas: {{count: 4}}\n  lanes: {{dra: {int(bool(sharing))}}}\n{sharing}")
    for more in ((), ("--class", "nvidia.com/gpu=another")):
        assert run("--config", config, *more, "--diff", folder / "pod.yaml") == code
        assert ("counts shares, 4 of each device" in capsys.readouterr().err) == bool(code)


def test_diff_shows_and_writes_nothing(folder: Path, capsys: Output) -> None:
    assert run(*RESOURCE, "--diff", folder) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == [f"--- a{folder}/pod.yaml", f"+++ b{folder}/pod.yaml"]
    assert [line for line in out[2:] if line.startswith("-")] == ["-      limits:", "-        nvidia.com/gpu: 1  # one"]
    assert (folder / "pod.yaml").read_text() == POD


def test_check_fails_until_all_is_converted(folder: Path, capsys: Output) -> None:
    assert run(*RESOURCE, "--check", folder) == 1
    assert capsys.readouterr().out == f"{folder}/pod.yaml: 1 pod template to convert\n"
    assert run(*RESOURCE, "--in-place", folder) == 0
    assert run(*RESOURCE, "--check", folder) == 0
    (folder / "quota.yaml").write_text(POD.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 0.5"))
    assert run(*RESOURCE, "--check", folder) == 1


def test_in_place_keeps_a_backup_and_the_mode_and_reverse_goes_back(folder: Path, capsys: Output) -> None:
    path, link = folder / "pod.yaml", folder / "link.yaml"
    path.chmod(0o640)
    link.symlink_to(path)
    assert run(*RESOURCE, "--in-place", link) == 0
    assert capsys.readouterr().out == f"{link}: converted\n"
    assert link.is_symlink()
    assert (folder / "pod.yaml.orig").read_text() == POD
    assert path.stat().st_mode & 0o777 == 0o640
    converted = path.read_text()
    assert "claims" in converted
    assert run("--reverse", "--check", path) == 1
    assert run("--reverse", "--in-place", path) == 0
    assert path.read_text() == POD
    assert run(*RESOURCE, "--in-place", path) == 1  # it never writes over a backup
    assert "there is a backup" in capsys.readouterr().err
    assert path.read_text() == POD
    assert run(*RESOURCE, "--in-place", "--backup", ".bak", path) == 0
    assert path.read_text() == converted


def test_a_filter_passes_bytes_and_stops_at_what_it_cannot_read() -> None:
    service = b"apiVersion: v1\r\nkind: Service\r\nmetadata: {name: \xc3\xbc}\r\n"
    done = filtered(service, *RESOURCE, "--post-renderer")
    assert (done.returncode, done.stdout, done.stderr) == (0, service, b"")
    done = filtered(POD.encode().replace(b"1  #", b"500m  #"), *RESOURCE, "--post-renderer")
    assert (done.returncode, done.stdout) == (0, POD.encode().replace(b"1  #", b"500m  #"))
    assert b"left: (standard input):13: Pod train" in done.stderr
    done = filtered(b"a: {{ .Values.b }}\n", *RESOURCE, "--post-renderer")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"error: (standard input):1:" in done.stderr
    assert b"Helm template" in done.stderr


def test_standard_input_and_back() -> None:
    done = filtered(POD.encode(), *RESOURCE, "-")
    assert b"claims:" in done.stdout
    assert filtered(done.stdout, "--reverse", "-").stdout == POD.encode()


def test_a_kustomize_component_does_the_same(folder: Path, capsys: Output) -> None:
    config = folder / "agent.conf"
    config.write_text(CONFIG)
    claims = folder / "claims"
    assert run("--config", config, "-o", "kustomize", "--to", claims, folder / "pod.yaml") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{claims}/kustomization.yaml",
        f"{claims}/resourceclaimtemplates.yaml",
    ]
    component = yaml.safe_load((claims / "kustomization.yaml").read_text())
    assert component["kind"] == "Component"
    (patch,) = component["patches"]
    assert patch["target"] == {"version": "v1", "kind": "Pod", "name": "train"}
    (template,) = yaml.safe_load_all((claims / "resourceclaimtemplates.yaml").read_text())
    name = template["metadata"]["name"]
    assert yaml.safe_load(patch["patch"]) == [
        {"op": "add", "path": "/spec/resourceClaims", "value": [{"name": "gpu", "resourceClaimTemplateName": name}]},
        {"op": "add", "path": "/spec/containers/0/resources/claims", "value": [{"name": "gpu"}]},
        {"op": "test", "path": "/spec/containers/0/resources/limits", "value": {"nvidia.com/gpu": 1}},
        {"op": "remove", "path": "/spec/containers/0/resources/limits"},
        {"op": "test", "path": "/spec/nodeSelector", "value": {"nvidia.com/gpu.product": "Tesla-T4"}},
        {"op": "remove", "path": "/spec/nodeSelector"},
    ]
    assert run(*RESOURCE, "-o", "kustomize", "--to", folder / "none", claims) == 0
    assert not (folder / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--class", "nvidia.com/gpu=gpu"], "no FILE was named"),
        (["x.yaml"], "no resource was named"),
        ([*RESOURCE, "--path", "spec.template", "x.yaml"], "is not KIND=PATH"),
        ([*RESOURCE, "--post-renderer", "x.yaml"], "reads standard input alone"),
        (["--post-renderer", "--reverse"], "leaves nothing in its output"),
        ([*RESOURCE, "--in-place", "-"], "cannot be written in place"),
        ([*RESOURCE, "-o", "kustomize", "x.yaml"], "belong together"),
        (["--reverse", "-o", "kustomize", "--to", "y", "x.yaml"], "changes no manifest"),
    ],
)
def test_arguments_that_mean_nothing(arguments: list[str], said: str, capsys: Output) -> None:
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [("gpu=gpu", "expected a domain and a name"), ("nvidia.com/gpu", "expected a lower-case DNS subdomain")],
)
def test_a_class_is_named_for_a_resource(words: str, said: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--class", words, "x.yaml")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_several_files_are_not_printed_as_one(folder: Path, capsys: Output) -> None:
    (folder / "other.yaml").write_text(POD)
    assert run(*RESOURCE, folder) == 2
    assert "Add --diff, --check, --in-place" in capsys.readouterr().err


def test_what_cannot_be_read_stops_no_other_file(folder: Path, capsys: Output) -> None:
    (folder / "binary.yaml").write_bytes(b"\x00\x01")
    (folder / "broken.yaml").write_text("a: 1\n b: 2\n")
    (folder / "empty.yaml").write_text("")
    assert run(*RESOURCE, "--in-place", folder, folder / "nothing.yaml") == 1
    out, err = capsys.readouterr()
    assert out == f"{folder}/pod.yaml: converted\n"
    assert sorted(line for line in err.splitlines() if line.startswith("error")) == [
        f"error: {folder}/binary.yaml: no text: it has zero bytes. Name files with manifests only",
        f"error: {folder}/broken.yaml:2: no valid YAML: mapping values are not allowed in this context. "
        "Indent with spaces, and quote values that contain : { } [ ] , & * #",
        f"error: {folder}/nothing.yaml: there is no such file or folder",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(folder: Path, capsys: Output) -> None:
    folder.chmod(0o500)
    assert run(*RESOURCE, "--in-place", folder) == 1
    assert "cannot be written" in capsys.readouterr().err
