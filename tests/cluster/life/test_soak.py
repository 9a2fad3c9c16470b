"""A short soak on the same node: load and faults of all kinds, then what is left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cluster.__main__ import ROOT
from tests.cluster.real_bed import own_cluster

MINUTES = 1
SECONDS = 600.0  # with what a soak waits for at its end


@pytest.mark.cluster
def test_load_and_faults_cause_no_double_hold_and_no_leak() -> None:
    if own_cluster() is None:
        pytest.skip("a soak stops and kills the programs of a cluster: on one of tests.node only")
    words = [sys.executable, "-m", "tests.soak", "--real", "--minutes", str(MINUTES), "--seed", "1"]
    done = subprocess.run(
        words, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    print(done.stdout[-400:])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "double_holds=0 leaks=0 stuck=0" in done.stdout
