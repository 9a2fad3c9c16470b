"""``python -m podresources``: the command, where its script is not installed."""

import sys

from podresources.cli import main

if __name__ == "__main__":
    sys.exit(main())
