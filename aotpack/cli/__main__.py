"""``python -m aotpack.cli``: the ``aotpack`` command where its script is not on the path."""

from . import main

main(prog_name="aotpack")
