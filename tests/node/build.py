"""Build the programs of a node from Go modules into the user's cache.

A build is a folder of its own, named after everything that it was made of: go.mod, go.sum, main.go, this file's flags.
It is made aside and renamed when it is whole, so a build that was killed leaves nothing that anybody would use.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.node.errors import NodeError
from tests.node.releases import FOLDER, HERE, Release

PROGRAMS = HERE / "programs"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
FLAGS = ("-ldflags", "-s -w")
STAMP = "k8s.io/component-base/version"
LOG_LINES = 30
SAY_SECONDS = 10.0
NO_GO = (
    "Go is not installed. It builds the Kubernetes nodes of `make cluster`, and is needed for nothing else "
    "(`make test` needs none): install Go 1.21 or newer, for example Debian's golang-go from backports."
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Module:
    """A Go module whose programs are built: the packages of its ``tool`` lines, and its own ``main``, if it has one."""

    name: str
    folder: Path
    """Has go.mod and go.sum."""
    sources: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Go's name of a program -> ours."""
    links: tuple[str, ...] = ()
    """Names by which the module's own program is called."""

    def key(self) -> str:
        """What the programs are made of, in 12 hexadecimal digits."""
        files = [self.folder / "go.mod", self.folder / "go.sum", *self.sources]
        parts = [*(path.read_bytes() for path in files), repr((FLAGS, self.flags, self.renamed, self.links)).encode()]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]

    def place(self) -> Path:
        """The folder of its programs, once they are built."""
        return cache() / f"{self.name}-{self.key()}"


def kubernetes(release: Release) -> Module:
    """Kubernetes' four programs and the two of its tests, which are measured beside ours."""
    major, minor, _ = release.version.split(".", 2)
    stamps = {"gitVersion": f"v{release.version}", "gitMajor": major, "gitMinor": minor}
    return Module(
        f"kubernetes-{release.version}",
        release.folder,
        (PROGRAMS / "main.go",),
        ("-ldflags", " ".join(["-s -w", *(f"-X {STAMP}.{name}={value}" for name, value in stamps.items())])),
        {"test-driver": "dra-test-driver"},
        KUBERNETES,
    )


ETCD = Module("etcd", PROGRAMS / "etcd", renamed={"server": "etcd"})
CONTAINERD = Module("containerd", PROGRAMS / "containerd")


def cache() -> Path:
    """Where builds are kept: below the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drabridge/node"


def tools() -> Path:
    """More programs, for machines that lack Debian's packages: what is here is taken where the machine has none."""
    return cache() / "tools"


def tool(path: str) -> Path:
    """A program of the machine, or that of :func:`tools`, whether it is there or not."""
    return Path(path) if Path(path).exists() else tools() / Path(path).name


def built(release: Release, say: Say = print) -> list[Path]:
    """Return the folders with the programs of a node of this release; build those that are not there.

    Raises NodeError where Go is missing or a build fails.
    """
    return [_built(module, say) for module in (kubernetes(release), ETCD, CONTAINERD)]


def program(name: str, release: Release) -> Path | None:
    """A program of the release; None while it is not built."""
    for module in (kubernetes(release), ETCD, CONTAINERD):
        path = module.place() / name
        if path.exists():
            return path
    return None


def is_built(release: Release) -> bool:
    return all(one.place().is_dir() for one in (kubernetes(release), ETCD, CONTAINERD))


def _built(module: Module, say: Say) -> Path:
    done = module.place()
    if done.is_dir():
        return done
    if not shutil.which("go"):
        raise NodeError(NO_GO)
    cache().mkdir(parents=True, exist_ok=True)
    with _alone(cache() / f"{module.name}.lock", module, say):
        if done.is_dir():
            return done
        for old in cache().glob(f"{module.name}-*.half"):  # of a build that was killed: the lock is ours
            shutil.rmtree(old)
        half = Path(tempfile.mkdtemp(prefix=f"{module.name}-", suffix=".half", dir=cache()))
        began = time.monotonic()
        say(f"building {module.name} from Go modules into {done}, once")
        try:
            _build(module, half, say)
            half.chmod(0o755)
            half.rename(done)
        finally:
            shutil.rmtree(half, ignore_errors=True)
        say(f"built {module.name} in {time.monotonic() - began:.0f} s")
    return done


@contextlib.contextmanager
def _alone(path: Path, module: Module, say: Say) -> Iterator[None]:
    """Wait for another build of the same module: it may make what is wanted."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build of {module.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(module: Module, target: Path, say: Say) -> None:
    with tempfile.TemporaryDirectory(prefix="drabridge-node-") as directory:
        folder = Path(directory)
        for path in (module.folder / "go.mod", module.folder / "go.sum", *module.sources):
            shutil.copy(path, folder)
        log = cache() / f"{module.name}.log"
        log.write_text("")
        run = _Go(module.name, folder, log, say).run
        if module.sources:
            run(["build", *module.flags, "-o", str(target / "kubernetes"), "."])
        run(["build", *FLAGS, "-o", f"{target}/", "tool"])
        for name, ours in module.renamed.items():
            (target / name).rename(target / ours)
        for name in module.links:
            (target / name).symlink_to("kubernetes")


@dataclass
class _Go:
    """Runs Go in a module's folder, and says now and then how far it is."""

    name: str
    folder: Path
    log: Path
    say: Say

    def run(self, words: Sequence[str]) -> None:
        command = ["go", words[0], "-v", *words[1:]]  # -v: the name of each package that is compiled
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        environment.setdefault("GOTOOLCHAIN", "auto")  # a module names the version of Go that it wants
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                self._follow(process)
            except BaseException:
                process.kill()
                raise
            if process.wait() != 0:
                last = "\n".join(self.log.read_text().splitlines()[-LOG_LINES:])
                raise NodeError(f"{self.name} cannot be built; the end of {self.log}:\n{last}")

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        began = said = time.monotonic()
        packages = 0
        with open(self.log, "a") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                packages += line.strip().count(" ") == 0
                if time.monotonic() - said > SAY_SECONDS:
                    said = time.monotonic()
                    self.say(f"{self.name}: {said - began:.0f} s, {packages} packages compiled, {line.strip()[:60]}")


# --- pinning a release ----------------------------------------------------------------------------------------------


def pin(version: str, say: Say = print) -> Path:
    """Write go.mod and go.sum of a Kubernetes version, as ``1.36.3``; return their folder. Asks the Go module proxy.

    k8s.io/kubernetes names its own staging modules by folder, which only its own go.mod can; each has a release of its
    own (1.36.3 is v0.36.3), and ``replace`` names those.
    """
    if not re.fullmatch(r"1\.\d+\.\d+", version):
        raise NodeError(f"{version!r} is no version of Kubernetes: write it as 1.36.3.")
    if not shutil.which("go"):
        raise NodeError(NO_GO)
    asked = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
    done = subprocess.run(asked, cwd="/", stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise NodeError(f"The Go module proxy has no Kubernetes {version}: {json.loads(done.stdout)['Error']}")
    text = Path(json.loads(done.stdout)["GoMod"]).read_text()
    staging = sorted(set(re.findall(r"(k8s\.io/[\w-]+) => \./staging", text)))
    go = re.search(r"^go (\S+)", text, re.MULTILINE)
    assert go, text
    lines = [
        *("module drabridge.test/kubernetes", "", f"go {go[1]}", "", "tool ("),
        *("\tk8s.io/kubernetes/test/e2e/dra/test-driver", "\tk8s.io/kubernetes/test/images/sample-device-plugin", ")"),
        *("", f"require k8s.io/kubernetes v{version}", "", "replace ("),
        *(f"\t{name} => {name} v0.{version.split('.', 1)[1]}" for name in staging),
        *(")", ""),
    ]
    folder = FOLDER / version.rpartition(".")[0]
    with tempfile.TemporaryDirectory(prefix="drabridge-pin-") as directory:
        here = Path(directory)
        (here / "go.mod").write_text("\n".join(lines))
        shutil.copy(PROGRAMS / "main.go", here)
        say(f"go mod tidy for Kubernetes {version}")
        environment = {**os.environ, "GOFLAGS": "-mod=mod"}
        tidy = subprocess.run(["go", "mod", "tidy"], cwd=here, env=environment, stderr=subprocess.PIPE, text=True)
        if tidy.returncode != 0:
            raise NodeError(f"go mod tidy failed:\n{tidy.stderr[-3000:]}")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("go.mod", "go.sum"):
            shutil.copy(here / name, folder)
    return folder


def tell(text: str) -> None:
    """Print a line at once."""
    print(text, file=sys.stderr, flush=True)
