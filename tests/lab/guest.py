"""Start the guest, run commands in it, plug devices in and out, end it.

Commands go through one virtio-serial port as JSON lines (:mod:`tests.lab.inside.server` answers them), devices
through QMP. A program in the guest plugs by a second port (:mod:`tests.lab.inside.hardware`): what it writes there,
this process does over QMP. Everything has a time limit. QEMU gets SIGKILL when its parent dies, so nothing stays.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab import shelf
from tests.lab.image import Image, LabError, build, make_disk

JSON = dict[str, Any]
BOOT_SECONDS = 900.0
"""A boot takes 68 s of processor time (measured); beside other work a guest was seen to have a tenth of one core."""
LOOK_SECONDS = 5.0
"""Between two looks at the console of a guest that boots."""
QMP_SECONDS = 60.0
TESTS_SECONDS = 1800.0
PYTHON = "python3"
CONSOLE_TAIL = 4000
OUTSIDE = "52:54:00:0f:00:01"
"""The hardware address of the card that leads outside: QEMU has 10.0.2.2 there, as a router."""


LOST_TIMER = "kthread timer wakeup didn't happen"
"""RCU's words for a processor that sleeps because its timer was lost: seen in a boot on QEMU 10, which never ended."""
BOOTS = 3


class GuestError(LabError):
    """The guest died, or did not answer in time; the text has the end of its console."""


class LostBootError(GuestError):
    """The guest does not boot by a fault of the emulation: QEMU 10 lost a timer, and failed an assertion of its own.

    Another boot is likely to go well.
    """


@dataclass(frozen=True)
class Done:
    """A command of the guest that ended."""

    rc: int
    out: str
    """Standard output and standard error, as they came."""


def needs() -> list[str]:
    """What this machine lacks to run the guest: Debian's packages."""
    found = {"qemu-system-x86": _qemu(), "util-linux": shutil.which("setpriv")}
    return [package for package, path in found.items() if path is None]


def _qemu() -> str | None:
    return shutil.which("qemu-system-x86_64")


def _offers(driver: str) -> bool:
    """Whether this machine's QEMU has the device: the virtual functions of ``igb`` came with 8.0."""
    words = [_qemu() or "", "-device", f"{driver},help"]
    return driver != "igb" or bool(subprocess.run(words, capture_output=True, check=False).stdout)


def _swtpm() -> str | None:
    return shutil.which("swtpm")


class Guest:
    """One virtual machine; ``with Guest() as guest`` boots it and ends it.

    ``keep`` is a folder for the disk that stays from one guest to the next, which the guest has under /state.
    ``more`` is an image of a disk that the guest finds as virtio-lab-more. With ``outside`` it has a network card by
    which it reaches what this machine reaches.
    """

    def __init__(
        self,
        image: Image | None = None,
        *,
        devices: Sequence[shelf.Device] = shelf.AT_BOOT,
        spare: Sequence[shelf.Device] = shelf.SPARE,
        keep: Path | None = None,
        more: Path | None = None,
        outside: bool = False,
    ) -> None:
        if missing := needs():
            raise LabError(f"the lab needs {' and '.join(missing)}: apt-get install {' '.join(missing)}")
        self.image = image or build()
        self.devices = {device.name: device for device in (*devices, *spare) if _offers(device.driver)}
        self._json = {device.name: device.json for device in self.devices.values()} | {
            bus["id"]: bus for bus in shelf.BUSES
        }
        self.notes: list[str] = []  # what programs in the guest told this process
        self._at_boot = [device for device in devices if device.name in self.devices]
        self._keep = keep
        self._more = more
        self._outside = outside
        self._folder = Path()
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, JSON] = {}
        self._news = threading.Condition()
        self._closed = ""
        self._writing = threading.Lock()
        self._asking = threading.Lock()
        self.boot_seconds = 0.0

    # -- start and end

    def __enter__(self) -> Self:
        for left in reversed(range(BOOTS)):
            try:
                self._start()
                break
            except BaseException as error:
                self.kill()
                if not (left and isinstance(error, LostBootError)):
                    raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _start(self) -> None:
        began = time.monotonic()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lab")))
        with_tpm = self._start_tpm()
        command = ["setpriv", "--pdeathsig", "KILL", "--", *self._command(with_tpm)]
        with open(self._folder / "qemu.log", "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
            )
        deadline = began + BOOT_SECONDS
        self._qmp = self._open("qmp.sock", deadline)
        try:
            self._qmp.readline()
            self._ask({"execute": "qmp_capabilities"})
        except OSError:
            raise GuestError(self._about("QEMU ended at once")) from None
        self._channel = self._open("command.sock", deadline)
        plugging = self._open("plug.sock", deadline)
        self._closed = ""
        reader = threading.Thread(target=self._read_answers, daemon=True)
        reader.start()
        self._stack.callback(reader.join, QMP_SECONDS)  # it says that this boot's channel is closed, not the next one's
        threading.Thread(target=self._serve_plugging, args=(plugging,), daemon=True).start()
        with self._news:  # the guest's server says number 0 when it is up
            while not self._news.wait_for(lambda: self._closed or 0 in self._answers, LOOK_SECONDS):
                if LOST_TIMER in self.console():
                    raise LostBootError(self._about("the guest lost a timer while it booted"))
                if time.monotonic() > deadline:
                    raise GuestError(self._about(f"the guest did not boot within {BOOT_SECONDS:g} s"))
        if self._closed:
            raise LostBootError(self._about("QEMU ended while the guest booted"))
        self.boot_seconds = time.monotonic() - began

    def kill(self) -> None:
        """Take its power away: what it had not written to a disk is lost."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait(QMP_SECONDS)
            self._process = None
        self._stack.close()

    def shut_down(self) -> None:
        """End it in order: processes get SIGTERM, disks are written."""
        self.run(["/opt/drabridge/tests/lab/inside/shutdown"], seconds=BOOT_SECONDS, may_die=True)
        assert self._process is not None
        try:
            self._process.wait(BOOT_SECONDS)
        except subprocess.TimeoutExpired:
            raise GuestError(self._about("the guest did not shut down")) from None
        self.kill()

    def _start_tpm(self) -> bool:
        program = _swtpm()
        if program is None:
            return False
        state = self._folder / "tpm"
        state.mkdir()
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "--", program, "socket", "--tpm2", "--tpmstate", f"dir={state}"),
                *("--ctrl", f"type=unixio,path={self._folder / 'tpm.sock'}", "--terminate"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        deadline = time.monotonic() + 10
        while not (self._folder / "tpm.sock").exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise LabError("swtpm did not start")
            time.sleep(0.02)
        return True

    def _command(self, with_tpm: bool) -> list[str]:
        words = [_qemu() or "", *shelf.MACHINE, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        words += ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd)]
        # On a busy host the kernel may miss ticks while it tries its timer, and would panic: no_timer_check.
        options = "no_timer_check intel_iommu=on iommu=pt 8250.nr_uarts=12"
        words += ["-append", f"console=ttyS0 loglevel=4 panic=-1 {options}"]
        words += ["-chardev", "file,id=console,path=console.log", "-serial", "chardev:console"]
        words += ["-chardev", "socket,id=qmp,path=qmp.sock,server=on,wait=off", "-mon", "qmp,mode=control"]
        words += ["-device", f"virtio-serial-pci,id=channel,addr={shelf.HARNESS_SLOT:#x}"]
        for name in ("command", "plug"):
            words += ["-chardev", f"socket,id=port-{name},path={name}.sock,server=on,wait=off"]
            words += ["-device", f"virtserialport,bus=channel.0,chardev=port-{name},name=lab.{name}"]
        words += _virtio_disk("lab-root", 1, self.image.root, snapshot=True)
        words += _virtio_disk("lab-project", 2, self.image.project, read_only=True)
        if self._keep is not None:
            state = self._keep / "state.img"
            if not state.exists():
                make_disk(state, "48M")
            words += _virtio_disk("lab-state", 3, state)
        if self._more is not None:
            words += _virtio_disk("lab-more", 4, self._more, snapshot=True)
        if self._outside:  # the only slot that neither the shelf nor the harness has
            words += ["-netdev", "user,id=net-outside"]
            words += ["-device", f"virtio-net-pci,netdev=net-outside,mac={OUTSIDE},addr=0x1"]
        for bus in shelf.BUSES:
            words += ["-device", json.dumps(bus)]
        if with_tpm:
            words += [
                "-chardev",
                "socket,id=chars-tpm,path=tpm.sock",
                "-tpmdev",
                "emulator,id=tpm-swtpm,chardev=chars-tpm",
            ]
        for device in self.devices.values():
            for option, value in device.backend:
                words += [option, value if isinstance(value, str) else json.dumps(value)]
        for device in self._at_boot:
            if device.driver != "tpm-tis" or with_tpm:
                words += ["-device", json.dumps(device.json)]
        return words

    def _open(self, name: str, deadline: float) -> Any:
        """A file for both directions, which is closed when QEMU has ended: its readers see its end before."""
        link = self._stack.enter_context(self._connect(name, deadline))
        file = link.makefile("rwb")
        self._stack.callback(_close, file)
        return file

    def _connect(self, name: str, deadline: float) -> socket.socket:
        while True:
            if self._process is not None and self._process.poll() is not None:
                raise GuestError(self._about("QEMU ended at once"))
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(str(self._folder / name))
                return link
            except OSError:
                link.close()
                if time.monotonic() > deadline:
                    raise GuestError(self._about(f"QEMU opened no {name}")) from None
                time.sleep(0.05)

    def _about(self, what: str) -> str:
        parts = [what]
        for name in ("qemu.log", "console.log"):
            with contextlib.suppress(OSError):
                text = (self._folder / name).read_text(errors="replace")
                parts.append(f"--- {name}\n{text[-CONSOLE_TAIL:]}")
        return "\n".join(parts)

    def console(self) -> str:
        """All that the guest's kernel and init said."""
        return (self._folder / "console.log").read_text(errors="replace")

    def cpu_seconds(self) -> float:
        """Processor time that QEMU has used so far: it tells of the guest, however busy this machine is."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- commands

    def run(
        self,
        command: Sequence[str] | str,
        *,
        seconds: float = 60.0,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        check: bool = False,
        may_die: bool = False,
    ) -> Done:
        """Run a program, or a line for the shell, as root in the checkout's folder. It is killed after ``seconds``.

        ``check`` raises GuestError unless it ends with 0.
        """
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        number = next(self._numbers)
        request = {"number": number, "command": words, "seconds": seconds, "stdin": stdin, "env": dict(env or {})}
        with self._writing:
            self._channel.write(json.dumps(request).encode() + b"\n")
            self._channel.flush()
        with self._news:
            self._news.wait_for(lambda: self._closed or number in self._answers, seconds + QMP_SECONDS)
            answer = self._answers.pop(number, None)
        if answer is None:
            if may_die and self._closed:
                return Done(0, "")
            raise GuestError(self._about(f"no answer to {words} within {seconds:g} s"))
        done = Done(answer["rc"], answer["out"])
        if check and done.rc != 0:
            raise GuestError(f"{words} ended with {done.rc} in the guest:\n{done.out}")
        return done

    def python(self, *words: str, seconds: float = 120.0, check: bool = True) -> str:
        """Run a Python module of the checkout; returns what it wrote."""
        return self.run([PYTHON, "-m", *words], seconds=seconds, check=check).out

    def passes(self, *tests: str) -> None:
        """Run tests of ``inside``, and print what they say: all must pass, and none be skipped."""
        files = [f"tests/lab/inside/{test}" for test in tests]
        command = [PYTHON, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *files]
        # A test or two has an agent there: a server of forks would import more than they do.
        variables = {"HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis", "DRABRIDGE_TEST_FORKS": "off"}
        done = self.run(command, seconds=TESTS_SECONDS, env=variables)
        print(done.out)
        assert done.rc == 0, done.out
        assert " passed" in done.out
        assert " skipped" not in done.out, done.out

    def _read_answers(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._channel:
                answer = json.loads(line)
                with self._news:
                    self._answers[answer["number"]] = answer
                    self._news.notify_all()
        with self._news:
            self._closed = "the channel is closed"
            self._news.notify_all()

    # -- devices

    def plug(self, name: str, **options: Any) -> None:
        """Plug a device or a bus of the shelf in; options replace its own (``port="15"``)."""
        deadline = time.monotonic() + QMP_SECONDS
        while True:
            try:
                self.qmp("device_add", **{**self._json[name], **options})
                return
            except GuestError as error:  # what is behind a device is let go of a moment after the device is gone
                if "in use" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def unplug(self, name: str, seconds: float = QMP_SECONDS) -> None:
        """Pull a device out; returns when QEMU has it no more: a PCI device, when the guest's kernel lets go of it."""
        self.qmp("device_del", id=name)
        deadline = time.monotonic() + seconds
        while self._has(name):
            if time.monotonic() > deadline:
                raise GuestError(self._about(f"{name} is still plugged in after {seconds:g} s"))
            time.sleep(0.1)

    def _has(self, name: str) -> bool:
        return any(one["name"] == name for one in self.qmp("qom-list", path="/machine/peripheral"))

    def qmp(self, execute: str, **arguments: Any) -> Any:
        """What QEMU answers; raises GuestError with its words when it refuses."""
        return self._ask({"execute": execute, "arguments": arguments})

    def _ask(self, request: JSON) -> Any:
        with self._asking:
            self._qmp.write(json.dumps(request).encode() + b"\n")
            self._qmp.flush()
            for line in self._qmp:
                answer = json.loads(line)
                if "return" in answer:
                    return answer["return"]
                if "error" in answer:
                    raise GuestError(f"{request}: {answer['error']['desc']}")
        raise GuestError(self._about("QEMU ended"))

    def _serve_plugging(self, link: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in link:
                request = json.loads(line)
                try:
                    match request["do"]:
                        case "plug":
                            self.plug(request["name"], **request["options"])
                        case "unplug":
                            self.unplug(request["name"])
                        case "note":
                            self.notes.append(request["text"])
                    answer: JSON = {}
                except (LabError, KeyError) as error:
                    answer = {"error": str(error)}
                link.write(json.dumps(answer).encode() + b"\n")
                link.flush()


def _virtio_disk(name: str, slot: int, file: Path, *, snapshot: bool = False, read_only: bool = False) -> list[str]:
    """A virtio disk whose serial is its name. ``snapshot``: what is written goes when the guest ends."""
    more = (",snapshot=on" if snapshot else "") + (",readonly=on" if read_only else "")
    drive = f"if=none,id={name},file={file},format=raw,cache={'unsafe' if snapshot else 'writeback'}{more}"
    return [
        "-drive",
        drive,
        "-device",
        f"virtio-blk-pci,drive={name},serial={name},addr={shelf.HARNESS_SLOT + slot:#x}",
    ]


def _close(file: Any) -> None:
    with contextlib.suppress(OSError):  # of what nobody read any more
        file.close()
