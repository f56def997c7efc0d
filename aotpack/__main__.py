"""Runs the command line as ``python -m aotpack``."""

from .tools.cli import main

if __name__ == "__main__":
    main(prog_name="aotpack")
