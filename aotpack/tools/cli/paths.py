"""The type of arguments that are a bundle on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class BundlePath(click.Path):
    """A path to a bundle. A reference is refused with the command that brings the bundle here."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: it is a URL.
        """
        if isinstance(value, str) and "://" in value:
            self.fail(f"{value} is not on this machine. Bring it here with `aotpack pull {value} -o PATH`.", param, ctx)
        return super().convert(value, param, ctx)
