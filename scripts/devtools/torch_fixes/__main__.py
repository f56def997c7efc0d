"""The register of torch fixes from the command line. It needs torch alone: the register's entries are data."""

from __future__ import annotations

import argparse
import sys

from .reports import write_tables
from .runs import run
from .sources import check, record


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/torch-fixes", description=__doc__)
    parser.add_argument("command", choices=["record", "check", "run", "docs"])
    parser.add_argument("fixes", nargs="*", help="run the reports of these fixes only")
    options = parser.parse_args()
    if options.command == "run":
        run(options.fixes)
    elif options.command == "record":
        record()
    elif options.command == "docs":
        write_tables()
    else:
        return check()
    return 0


if __name__ == "__main__":
    sys.exit(main())
