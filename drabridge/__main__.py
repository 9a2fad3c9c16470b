"""``python -m drabridge``: the same as the ``drabridge`` command."""

import sys

from drabridge.cli import main

sys.exit(main())
