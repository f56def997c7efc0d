"""HTML pages: what a page may load, how text of a bundle stands in it, and the libraries that it carries."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from aotpack.tools.report.html import Page, Section, fragment, render
from aotpack.tools.report.html.page import json_text
from aotpack.tools.report.text import visible
from devtools import vendor

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202eevil\u200b\0"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if self._raw:
            self.scripts.append((self.found[-1][1], data))
        self._raw = False


def page_with(text: str) -> str:
    sections = [Section("first", text, fragment("text", text=text))]
    return render(Page(text, text, text, sections, {"names": [text, {text: text}]}, libraries=["dagre", "d3-hierarchy", "uplot"]))


def test_a_page_loads_nothing() -> None:
    elements = Elements(page_with("name"))
    assert not [(tag, attributes) for tag, attributes in elements.found if attributes.keys() & {"src", "srcset", "action"}]
    links = [attributes["href"] or "" for _, attributes in elements.found if "href" in attributes]
    assert all(link.startswith("#") for link in links)


def test_the_policy_allows_the_scripts_and_styles_of_the_page_alone() -> None:
    elements = Elements(page_with("name"))
    (policy,) = [a["content"] or "" for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    code = [text for attributes, text in elements.scripts if attributes.get("type") != "application/json"]
    digests = {f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}" for text in code}
    assert digests == set(re.findall(r"'(sha256-[^']+)'", policy))


def test_hostile_names_are_text() -> None:
    page = page_with(HOSTILE)
    plain = Elements(page_with("name"))
    assert [tag for tag, _ in Elements(page).found] == [tag for tag, _ in plain.found]
    assert not set(page) & set("\x1b\u202e\u200b\0")
    (data,) = [text for attributes, text in Elements(page).scripts if attributes.get("id") == "data-names"]
    assert json.loads(data) == [visible(HOSTILE), {visible(HOSTILE): visible(HOSTILE)}]


def test_json_in_a_page_holds_nothing_of_html() -> None:
    assert not set(json_text({"<!--": ["<script>", "&amp;", "\u2028"]})) & set("<>&\u2028")


def test_visible_text() -> None:
    assert visible("größe 名 x̄ é ∑ a-b_c.d[0]") == "größe 名 x̄ é ∑ a-b_c.d[0]"
    assert visible("a\x1bb\nc\u202ed\u2028e\U000e0001f\ud800") == r"a\x1bb\x0ac\u202ed\u2028e\U000e0001f\ud800"


def test_the_libraries_are_those_of_the_manifest() -> None:
    assert vendor.check() == []
