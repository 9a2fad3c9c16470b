"""A coordinator names the claims that wait, and agents lease them without watching pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.kube.claim_hints import MOST_CLAIMS, ClaimHint, hints_name, hints_object, hints_text, lock_name
from drabridge.offers.slices import lease_condition
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.apiserver.store import Json  # type: ignore[attr-defined]
