"""Entry point of `python -m asyncrl`, the same as the command `asyncrl`."""

import sys

if __name__ == "__main__":
    try:
        from asyncrl.cli.entry import main
    except KeyboardInterrupt:  # before `main` heeds it
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(main())
