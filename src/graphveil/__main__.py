"""Run the command line as ``python -m graphveil``."""

import sys

from graphveil.cli import main

if __name__ == "__main__":
    sys.exit(main())
