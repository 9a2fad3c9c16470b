"""``python -m tests.ledger.search``: search one small world, see :mod:`tests.ledger.search.search`."""

from __future__ import annotations

import sys

from tests.ledger.search.search import main

sys.exit(main())
