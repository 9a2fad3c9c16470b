"""A release: built from a clone by its command, then read and checked as somebody does who downloads it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import cyclonedx.schema
import pytest
import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from deploy.helm import CHART, ROOT
from deploy.release import __main__ as command_line
from deploy.release import audit, bill, notes, signatures
from deploy.release.__main__ import ReleaseError, must_be_equal
from drabridge import __version__
from hatch_build import LIBRARIES

pytestmark = pytest.mark.long
LIMIT_SECONDS = 400.0
CHANGED = "# changed\n"


def command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )


def release(clone: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    return command(sys.executable, "-m", "deploy.release", "--images", *options, cwd=clone)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this repository, with what is changed here committed: only what is committed is built."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository: a release is built from a commit")
    there = tmp_path_factory.mktemp("clone") / "drabridge"
    assert command("git", "clone", "-q", ROOT, there, cwd=ROOT).returncode == 0
    files = command("git", "ls-files", "-z", "-com", "--exclude-standard", cwd=ROOT).stdout.split("\0")
    for name in set(files) - {""}:
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, there / name)
        else:
            (there / name).unlink(missing_ok=True)
    changelog = there / "CHANGELOG.md"
    if f"\n## {__version__}" not in changelog.read_text():
        changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {__version__}", 1))
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    assert command("git", "add", "-A", cwd=there).returncode == 0
    command("git", *identity, "commit", "-q", "-m", "What is tested", cwd=there)
    return there


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A throw-away key."""
    path = tmp_path_factory.mktemp("key") / "release.key"
    made = ec.generate_private_key(ec.SECP256R1())
    none = serialization.NoEncryption()
    path.write_bytes(made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none))
    return path


@pytest.fixture(scope="module")
def released(clone: Path, key: Path) -> Path:
    out = clone.parent / "dist"
    done = release(clone, "--key", key, "--output", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both are identical" in done.stdout
    return out


@pytest.mark.slow
def test_everything_is_there_and_signed(released: Path) -> None:
    names = {path.name for path in released.iterdir()}
    prefix = f"drabridge-{__version__}"
    wanted = {
        f"{prefix}-py3-none-any.whl",
        f"deviceplugin-{__version__}-py3-none-any.whl",
        f"podresources-{__version__}-py3-none-any.whl",
        f"{prefix}.tar.gz",
        f"{prefix}.tgz",
        f"{prefix}.cdx.json",
        f"{prefix}-licences.txt",
        f"{prefix}-note.md",
        f"{prefix}-provenance.json",
        f"{prefix}-provenance.intoto.jsonl",
        "SHA256SUMS",
    }
    assert names == wanted | {f"{name}.sig" for name in wanted} | {"cosign.pub"}


@pytest.mark.slow
def test_a_reader_of_the_security_policy_can_verify_it(released: Path, tmp_path: Path) -> None:
    text = (ROOT / "SECURITY.md").read_text()
    (block,) = re.findall(r"```console\n(\$ openssl.*?)```", text.partition("## Verify a release")[2], re.DOTALL)
    script = "set -e\n" + "".join(line[2:] for line in re.findall(r"^\$ .*\n", block, re.MULTILINE))
    there = tmp_path / "download"
    shutil.copytree(released, there)
    done = command("bash", "-c", script, cwd=there)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verified OK" in done.stdout
    assert f"drabridge-{__version__}.tgz: OK" in done.stdout

    with (there / f"drabridge-{__version__}.tgz").open("ab") as file:
        file.write(b"x")
    assert command("bash", "-c", script, cwd=there).returncode != 0  # the sums do not fit
    with (there / "SHA256SUMS").open("a") as text_file:
        text_file.write(CHANGED)
    assert "Verified OK" not in command("bash", "-c", script, cwd=there).stdout  # nor the signature of the sums


@pytest.mark.slow
def test_every_signature_is_of_its_file_alone(released: Path) -> None:
    public = (released / "cosign.pub").read_bytes()
    signed = [path for path in released.iterdir() if path.suffix != ".sig" and path.name != "cosign.pub"]
    assert all(signatures.is_signed(path, public) for path in signed)
    other = ec.generate_private_key(ec.SECP256R1())
    assert not any(signatures.is_signed(path, signatures.public_pem(other)) for path in signed)


@pytest.mark.slow
def test_the_provenance_names_commit_files_and_what_went_in(released: Path, clone: Path, key: Path) -> None:
    envelope = json.loads((released / f"drabridge-{__version__}-provenance.intoto.jsonl").read_text())
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    public = signatures.private_key(key).public_key()
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    public.verify(
        signature, b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload), ec.ECDSA(hashes.SHA256())
    )
    statement = json.loads(payload)
    lines = (released / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for subject in statement["subject"]:
        assert sums[subject["name"]] == subject["digest"]["sha256"]
    built = statement["predicate"]["buildDefinition"]
    assert built["externalParameters"]["commit"] == command("git", "rev-parse", "HEAD", cwd=clone).stdout.strip()
    went_in = {one["uri"] for one in built["resolvedDependencies"]}
    assert {"deploy/image/requirements.lock", "docker.io/library/python"} <= went_in


def cyclonedx_schema() -> Draft7Validator:
    """CycloneDX's own schema, which its library ships."""
    folder = Path(cyclonedx.schema.__file__).parent / "_res"
    found = {
        name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text())
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    base = found["bom-1.6"]["$id"].rpartition("/")[0]  # that of the references between the files
    registry = Registry().with_resources(
        (f"{base}/{name}.SNAPSHOT.schema.json", Resource.from_contents(one)) for name, one in found.items()
    )
    return Draft7Validator(found["bom-1.6"], registry=registry)


def test_the_provenance_names_no_base_that_was_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the builds and the bills, which the release above has had."""

    def build(work: Path, *_: object) -> str:
        (work / "out").mkdir(parents=True)
        shutil.copytree(ROOT / "deploy/image", work / "source/deploy/image")
        return __version__

    monkeypatch.setattr(command_line, "_build", build)
    monkeypatch.setattr(command_line, "_git", lambda *words: "" if words[0] == "status" else "7")
    monkeypatch.setattr(command_line, "_bills", lambda *_: None)
    monkeypatch.setattr(audit, "known_holes", lambda _: [])
    monkeypatch.setattr(notes, "of_version", lambda *_: "note")
    assert command_line.main(["--output", str(tmp_path), "--podman=--build-arg=BASE=localhost/other"]) == 0
    (provenance,) = tmp_path.glob("*-provenance.json")
    built = json.loads(provenance.read_text())["predicate"]["buildDefinition"]
    assert "deploy/image/requirements.lock" in {one["uri"] for one in built["resolvedDependencies"]}
    assert not any("python" in one["uri"] for one in built["resolvedDependencies"])


@pytest.mark.slow
def test_the_bill_is_valid_and_has_every_locked_package_with_its_licence(released: Path) -> None:
    text = (released / f"drabridge-{__version__}.cdx.json").read_text()
    assert list(cyclonedx_schema().iter_errors(json.loads(text))) == []
    lock = (ROOT / "deploy/image/requirements.lock").read_text()
    wanted = {
        f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE)
    }
    assert {one["purl"] for one in json.loads(text)["components"]} == wanted
    licences = (released / f"drabridge-{__version__}-licences.txt").read_text()
    assert len(licences.splitlines()) == len(wanted)
    assert bill.UNKNOWN not in licences


@pytest.mark.slow
def test_the_three_wheels_have_one_version_and_share_no_file(released: Path) -> None:
    """All three in one environment: a file of two of them would be lost when one is removed."""
    wheels = {path.name.split("-")[0]: zipfile.ZipFile(path) for path in released.glob("*.whl")}
    assert set(wheels) == {"drabridge", *LIBRARIES}
    names = [name for wheel in wheels.values() for name in wheel.namelist()]
    assert len(names) == len(set(names))
    stubs = ("podresources/wire/v1_pb2.py", "deviceplugin/wire/v1beta1_pb2.py", "drabridge/wire/dra_v1_pb2.py")
    assert set(stubs) <= set(names)
    for package, wheel in wheels.items():
        folder = f"{package}-{__version__}.dist-info"
        assert {name.split("/")[0] for name in wheel.namelist()} == {package, folder}
        assert {f"{package}/py.typed", f"{folder}/licenses/LICENSE"} <= set(wheel.namelist())
        about = wheel.read(f"{folder}/METADATA").decode()
        assert f"\nVersion: {__version__}\n" in about
        assert "file:" not in about
        wanted = {f"{name}=={__version__}" for name in LIBRARIES} if package == "drabridge" else set()
        found = re.findall(rf"^Requires-Dist: ((?:{'|'.join(LIBRARIES)}).*)$", about, re.MULTILINE)
        assert set(found) == wanted
    scripts = wheels["podresources"].read(f"podresources-{__version__}.dist-info/entry_points.txt").decode()
    assert "podresources = podresources.cli:main" in scripts


@pytest.mark.slow
def test_package_and_chart_have_one_version_and_no_custom_resource(released: Path) -> None:
    listed = command("tar", "-tzf", released / f"drabridge-{__version__}.tgz", cwd=released).stdout.split()
    assert "drabridge/Chart.yaml" in listed
    assert not any("/crds/" in name for name in listed)
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == __version__


@pytest.mark.slow
def test_the_note_is_the_changelogs_section(released: Path) -> None:
    note = (released / f"drabridge-{__version__}-note.md").read_text()
    assert note.strip()
    assert note.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert "## " not in re.sub(r"^###", "", note, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("changelog", "said"),
    [("# Changelog\n\n## Unreleased\n- x\n", "no section 1.2.3"), ("## 1.2.3\n\n## 1.2.2\n- x\n", "is empty")],
)
def test_a_version_without_a_note_is_refused(changelog: str, said: str) -> None:
    with pytest.raises(notes.NoSectionError, match=said):
        notes.of_version(changelog, "1.2.3")


@pytest.mark.slow
def test_what_is_not_committed_is_never_released(clone: Path, tmp_path: Path) -> None:
    readme = clone / "README.md"
    before = readme.read_text()
    try:
        readme.write_text(before + CHANGED)
        done = release(clone, "--output", tmp_path / "dist")
    finally:
        readme.write_text(before)
    assert done.returncode == 1
    assert "only what is committed is built" in done.stderr
    assert "README.md" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_two_builds_that_differ_are_no_release(tmp_path: Path) -> None:
    for name, text in (("first", "same"), ("second", "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.whl").write_text("same")
        (tmp_path / name / "changed.whl").write_text(text)
    (tmp_path / "first/missing.tgz").write_text("")
    with pytest.raises(ReleaseError, match=r"not the same: changed\.whl, missing\.tgz$"):
        must_be_equal(tmp_path / "first", tmp_path / "second")


@pytest.mark.parametrize(("text", "said"), [("no key", "cannot be read as a private key"), (None, "No such file")])
def test_a_key_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "release.key"
    if text is not None:
        path.write_text(text)
    with pytest.raises(signatures.KeyFileError, match=said):
        signatures.private_key(path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "release.key"
    none = serialization.NoEncryption()
    made = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none))
    with pytest.raises(signatures.KeyFileError, match="P-256"):
        signatures.private_key(path)


@pytest.mark.parametrize(
    ("report", "holes"),
    [
        ('{"dependencies": [{"name": "h11", "version": "0.16.0", "vulns": []}], "fixes": []}', []),
        (
            '{"dependencies": [{"name": "h11", "version": "0.14.0", "vulns": [{"id": "CVE-2025-43859",'
            ' "fix_versions": ["0.16.0"], "aliases": [], "description": ""}]}], "fixes": []}',
            ["h11 0.14.0: CVE-2025-43859, fixed in 0.16.0"],
        ),
        ('{"dependencies": [{"name": "h11", "skip_reason": "Dependency not found on PyPI"}], "fixes": []}', None),
        ('{"dependencies": [], "fixes": []}', None),
        ("", None),
        ("[]", None),
    ],
)
def test_holes_are_told_from_no_answer(report: str, holes: list[str] | None) -> None:
    assert audit.of_report(report) == holes


def test_an_image_is_listed_by_what_is_in_its_files(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "opt/drabridge/h11-0.16.0.dist-info").mkdir(parents=True)
    (layer / "opt/drabridge/h11-0.16.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: h11\nVersion: 0.16.0\nLicense-Expression: MIT\n\ntext\n"
    )
    (layer / "var/lib/dpkg").mkdir(parents=True)
    (layer / "var/lib/dpkg/status").write_text(
        "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    blobs = tmp_path / "image/blobs/sha256"
    blobs.mkdir(parents=True)
    assert command("tar", "-czf", blobs / "aaaa", "-C", layer, ".", cwd=tmp_path).returncode == 0
    (blobs / "bbbb").write_text("{}")
    archive = tmp_path / "image.oci.tar"
    assert command("tar", "-cf", archive, "-C", tmp_path / "image", "blobs", cwd=tmp_path).returncode == 0
    found = [(one.kind, one.name, one.version) for one in bill.of_image(archive)]
    assert found == [("deb", "libc6", "2.36-9"), ("pypi", "h11", "0.16.0")]
