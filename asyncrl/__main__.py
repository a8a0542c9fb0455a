"""Entry point of `python -m asyncrl`, the same as the command `asyncrl`."""

import sys

from asyncrl.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
