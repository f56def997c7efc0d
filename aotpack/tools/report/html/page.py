"""Puts a page together. All text that comes from a bundle is escaped here, and only here.

A page is one file. It opens from disk, and a Content-Security-Policy forbids it every request and
every script but its own. Sections are jinja2 templates below ``templates/``; :func:`fragment` renders
one. Data for scripts is JSON. Scripts and styles come from ``static/`` (ours) and ``vendor/``
(libraries, see :mod:`devtools.vendor`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from aotpack_loader.format.events import ROOT

from ..text import size_text, time_text, visible

_HERE = Path(__file__).parent
_JSON_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Section:
    """A part of a page with an entry in its navigation. ``body`` is HTML, made by :func:`fragment`."""

    id: str
    title: str
    body: Markup
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A page before it is rendered.

    ``data`` are JSON documents that scripts read by name (``aotpack.data("graphs")``). ``scripts`` are
    files of ``static/`` without their ending, run in order after ``base``. ``libraries`` are files of
    ``vendor/`` without theirs.
    """

    title: str
    heading: str
    subtitle: str = ""
    sections: Sequence[Section] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    scripts: Sequence[str] = ()
    libraries: Sequence[str] = ()


def fragment(template: str, **values: Any) -> Markup:
    """Render the template ``templates/<template>.html`` to HTML. Strings in ``values`` are escaped."""
    return Markup(_environment().get_template(f"{template}.html").render(**values))


def render(page: Page) -> str:
    """Return the page as the text of one HTML file."""
    styles = [_asset("static/base.css"), *(_asset(path) for name in page.libraries if _exists(path := f"vendor/{name}.min.css"))]
    scripts = [_asset(f"vendor/{name}.min.js") for name in page.libraries]
    scripts += [_asset(f"static/{name}.js") for name in ("base", *page.scripts)]
    policy = {
        "default-src": ["'none'"],
        "script-src": list(map(_source, scripts)),
        "style-src": list(map(_source, styles)),
        "img-src": ["data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    return fragment(
        "page",
        page=page,
        policy="; ".join(f"{name} {' '.join(sources)}" for name, sources in policy.items()),
        styles=list(map(Markup, styles)),
        scripts=list(map(Markup, scripts)),
        data={name: json_text(value) for name, value in page.data.items()},
        licences={name: escape(_asset(f"vendor/{name}.LICENSE.txt")) for name in page.libraries},
    )


_NOT_PLAIN = re.compile(r"\\[bfnrtu]|[^ -~]")
"""What JSON writes for characters that are not printable ASCII."""


def json_text(value: Any) -> Markup:
    """Return ``value`` as JSON that may stand in a ``<script>``. Strings in it are made visible."""
    dumps = partial(json.dumps, separators=(",", ":"), allow_nan=False)
    text = dumps(value)
    if _NOT_PLAIN.search(text):  # rare; a large graph has a million strings
        text = dumps(_visible(value), ensure_ascii=False)
    return Markup(text.translate(_JSON_ESCAPES))


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): _visible(item) for key, item in value.items()}
    return list(map(_visible, value)) if isinstance(value, (list, tuple)) else value


def _finalized(value: Any) -> Any:
    """What a template shows for a value: text of a bundle without invisible characters."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["ROOT"] = ROOT
    found.filters |= {"size": size_text, "time": time_text, "number": lambda count: f"{count:,}"}
    return found


@cache
def _asset(path: str) -> str:
    """The text of one of our own or a library's files, as it stands in the page."""
    text = (_HERE / path).read_text(encoding="utf-8").strip().replace("\0", r"\x00")  # HTML holds no NUL, a script's string may
    assert "</script" not in text, f"{path} would end the script that holds it"
    return text


def _exists(path: str) -> bool:
    return (_HERE / path).is_file()


def _source(text: str) -> str:
    """The source expression of the policy for an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
