"""Runs the ``aotpack`` command as ``python -m aotpack.tools.cli``, for when its script is not on the path."""

from . import main

main(prog_name="aotpack")
