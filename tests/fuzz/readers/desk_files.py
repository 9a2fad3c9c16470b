"""Files on an administrator's desk: configuration, kubeconfig, manifests, plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from drabridge.config import import_generic_device_plugin, import_nvidia_device_plugin
from drabridge.config.advice import advice
from drabridge.config.loader import load
from drabridge.errors import ConfigError, HostError
from drabridge.kube import kubeconfig
from drabridge.migrate.apply.manifests import read_manifests
from drabridge.migrate.apply.state import State
from drabridge.migrate.convert import files
from drabridge.migrate.convert.conversion import convert, reverse, survey, text_of
from drabridge.migrate.convert.default_classes import default_devices
from drabridge.migrate.convert.settings import Finding, Level, Settings
from drabridge.migrate.plan import document
from drabridge.migrate.survey import survey_folders
from podresources.resolve import api_server
from tests.fuzz.reader import CORPUS, Form, Read, Reader

CLASSES = {"nvidia.com/gpu": "gpu.example.com", "amd.com/gpu": "amd.example.com"}


@contextmanager
def configuration(root: Path) -> Iterator[Read]:
    def read(data: bytes) -> None:
        with suppress(ConfigError):
            list(advice(load(data)))

    yield read


def imported(convert_file: Callable[[bytes], str]) -> Callable[[Path], AbstractContextManager[Read]]:
    """Return the reader of another plugin's configuration: ours comes of it, or an error."""

    @contextmanager
    def begun(root: Path) -> Iterator[Read]:
        def read(data: bytes) -> None:
            with suppress(ConfigError):
                load(convert_file(data))

        yield read

    return begun


@contextmanager
def kubeconfigs(root: Path) -> Iterator[Read]:
    """The agent's reader (in a process of its own, there) and that of ``podresources``."""
    path = root / "kubeconfig"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(ConfigError):
            found = kubeconfig.read(path)
            assert found.authorization.isascii()
        with suppress(api_server.ApiServerError):
            assert api_server.of_kubeconfig(path).token.isascii()

    yield read


@contextmanager
def manifests(root: Path) -> Iterator[Read]:
    """Manifests and values: findings say what is wrong with a text, twice gives the same, and there is a way back."""

    def read(data: bytes) -> None:
        text = text_of(data)
        if isinstance(text, Finding):
            return
        settings = Settings(default_devices([text]))
        survey(text, settings)
        found = convert(text, settings)
        if any(one.level is Level.ERROR for one in found.findings):
            assert found.text == text
            return
        if found.text != text:
            assert convert(found.text, settings).text == found.text
            back = reverse(found.text, found.undo)
            assert back.findings or back.text == text
            assert not back.findings, [one.message for one in back.findings]

    yield read


@contextmanager
def undo(root: Path) -> Iterator[Read]:
    """Converted manifests on the way back: the comments at their end may say anything."""

    def read(data: bytes) -> None:
        text = text_of(data)
        if not isinstance(text, Finding):
            found = reverse(text)
            assert found.text == text or not found.findings
            reverse(text, undo=text)

    yield read


@contextmanager
def folders(root: Path) -> Iterator[Read]:
    """A folder with a strange kustomization, and one with a strange manifest beside a good one."""
    good = (CORPUS.parents[1] / "migrate/manifests/pod-vectoradd.yaml").read_bytes()
    for name in ("a", "b"):
        (root / name).mkdir()
        (root / name / "good.yaml").write_bytes(good)

    def read(data: bytes) -> None:
        (root / "a/kustomization.yaml").write_bytes(data)
        (root / "b/odd.yaml").write_bytes(data)
        files.find([root], tuple(CLASSES))
        found = read_manifests([root / "b"], None, CLASSES)
        assert any(path.name == "good.yaml" for path in found.texts)
        survey_folders([root], {}, lambda what, number: None)

    yield read


@contextmanager
def plans(root: Path) -> Iterator[Read]:
    path = root / "plan.yaml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(ConfigError):
            json.dumps(document.as_data(document.load(path)))

    yield read


@contextmanager
def plan_states(root: Path) -> Iterator[Read]:
    (good,) = (CORPUS / "plan").glob("plan.yaml")
    plan = document.load(good)

    def read(data: bytes) -> None:
        (root / "state").write_bytes(data)
        with suppress(ConfigError, HostError):
            found = State(root / "state", plan)
            for step in plan.steps:
                found.of(step)
            found.save()

    yield read


_MANIFESTS = ("tests/migrate/manifests/*.yaml",)
READERS = (
    Reader("config", Form.YAML, "the agent's configuration", configuration, ("deploy/examples/*.yaml",)),
    Reader("config-gdp", Form.YAML, "generic-device-plugin's", imported(import_generic_device_plugin.convert)),
    Reader("config-nvidia", Form.YAML, "NVIDIA's device plugin's", imported(import_nvidia_device_plugin.convert)),
    Reader("kubeconfig", Form.YAML, "kubeconfigs", kubeconfigs),
    Reader("manifests", Form.YAML, "manifests and values of charts", manifests, _MANIFESTS),
    Reader("manifests-json", Form.JSON, "manifests as JSON", manifests),
    Reader("undo", Form.YAML, "converted manifests, on the way back", undo),
    Reader("folders", Form.YAML, "folders with a kustomization", folders),
    Reader("plan", Form.YAML, "plans of a migration", plans),
    Reader("plan-state", Form.JSON, "what was done of a plan", plan_states),
)
