"""How long tests wait for what must happen.

Limits in the tests are chosen for a machine of one's own. On one that others share everything takes several times as
long, and now and then it stands still for seconds; a limit is there to end a test that hangs, not to measure. So every
helper that waits multiplies its limit. What is measured is in tests/bench.
"""

from __future__ import annotations

PATIENCE = 12

HANG_SECONDS = 5.0 * PATIENCE
"""What ends a test that hangs, where nothing else says how long it may take."""
