"""``python -m devtools.programs``: see :mod:`devtools.programs.search`."""

from .search import main

if __name__ == "__main__":
    main()
