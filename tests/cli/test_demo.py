"""The demo from beginning to end, as a newcomer runs it."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from drabridge.cli import main


def loop_devices() -> set[str]:
    return {path.name for path in Path("/sys/block").glob("loop*")}


@pytest.mark.slow
def test_the_demo_tells_its_story_and_leaves_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-m", "drabridge", "demo"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Simulated: the API server, the scheduler, kubelet" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    for word in ("Allocate", "NodePrepareResources", "restart"):
        assert word in done.stdout, done.stdout
    made = set(re.findall(r"loop\d+", done.stdout))  # where it could make any
    assert not made & loop_devices()


def test_the_demo_stays_with_all_that_it_names_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "drabridge", "demo", "--stay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        try:
            told = ""
            while "Ctrl-C ends it" not in told:
                line = demo.stdout.readline()
                assert line, f"it ended: {told}"
                told += line
            tried = [line.split() for line in told.splitlines() if re.match(r" {6}(drabridge|podresources) ", line)]
            assert [words[1] for words in tried] == ["status", "lanes", "list", "export", "migrate"], told
            for words in tried:
                if words[1] == "export":  # it would not end
                    continue
                shown = [word for word in words[1:] if word != "--watch"]
                done = subprocess.run(
                    [sys.executable, "-m", words[0], *shown], capture_output=True, text=True, timeout=300
                )
                assert done.returncode in (0, 1), done.stderr
                assert "Traceback" not in done.stderr
                assert done.stdout, (words, done.stderr)
            (metrics,) = re.findall(r"curl -s (http://\S+)", told)
            for url, says in (
                (metrics, "drabridge_device_allocation_info"),
                (metrics.removesuffix("metrics"), "<html"),
            ):
                with urllib.request.urlopen(url, timeout=300) as answer:
                    assert says in answer.read().decode()
            root = Path(re.findall(r"--kubeconfig (\S+)/kubeconfig", told)[0])
            assert root.is_dir()
            demo.send_signal(signal.SIGINT)
            rest, _ = demo.communicate(timeout=300)
            assert demo.returncode == 0, rest
            assert "Traceback" not in rest
            assert not root.exists()
        finally:
            demo.send_signal(signal.SIGINT)  # also when an assertion failed: it removes its devices
            demo.wait(timeout=300)
    assert not set(re.findall(r"loop\d+", told)) & loop_devices()


@pytest.mark.parametrize("missing", ["celpy", "drabridge.sim"])
def test_without_the_extra_one_line_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("drabridge.cli.demo.find_spec", lambda name: None if name == missing else find_spec(name))
    assert main(["demo"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "pip install 'drabridge[demo]'" in line
