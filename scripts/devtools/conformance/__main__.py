"""``python -m devtools.conformance``: see :mod:`devtools.conformance.sweep`."""

from .sweep import main

if __name__ == "__main__":
    main()
