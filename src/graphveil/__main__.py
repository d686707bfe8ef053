"""Run the command line as ``python -m graphveil``."""

from graphveil.cli import main

if __name__ == "__main__":
    main()
