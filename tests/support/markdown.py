"""Reads Markdown pages for tests: fenced blocks, links and the anchors of headings."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^\n]*)\n(?P<text>.*?)^ *(?P=ticks) *$", re.DOTALL | re.MULTILINE)
_INFO = re.compile(r'^(?P<language>[\w+-]*)(?: +title="(?P<title>[^"]*)")?$')
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    ``title`` is the kind of text: a file, ``output``, ``raises X``, ``warns X``, ``not run: why``.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def left_out(self) -> bool:
        return self.title.startswith("not run")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """All pages for readers.

    The specification is not included, because its examples have tests of their own. Reports of
    torch bugs are not included either. Their programs show what is wrong; ``scripts/torch-fixes run`` runs them.
    """
    alone = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "loader" / "README.md"]
    return [*alone, *sorted(_docs()), *sorted((ROOT / "examples").rglob("*.md"))]


def _docs() -> list[Path]:
    return [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "torch-fixes"]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        info = _INFO.match(match["info"].strip())
        assert info is not None, f"{page}:{line}: {match['info']!r} is not a language and a title"
        found.append(Block(page, line, info["language"], info["title"] or "", textwrap.dedent(match["text"])))
    return found


def links(page: Path) -> list[str]:
    """Targets of the links of a page, except those inside code."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
    return [match["target"] for match in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """The names by which links can refer to the page's headings, as GitHub and the site generate them."""
    titles = re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {_slug(title) for title in titles}


def _slug(title: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    kept = re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKC", plain).lower())
    return re.sub(r"\s", "-", kept.strip())


def sentences(page: Path) -> list[str]:
    """Sentences of paragraphs and lists, without code, tables, headings and generated text."""
    text = _FENCE.sub("", page.read_text())
    text = re.sub(r"<!-- [\w-]+:begin -->.*?<!-- [\w-]+:end -->", "", text, flags=re.DOTALL)
    lines = [
        re.sub(r"^\s*([-*]|\d+\.)\s+", "\n\n", line) for line in text.splitlines() if not re.match(r"\s*(\||#|!\[|<|:::)", line)
    ]
    text = re.sub(r"`[^`]*`|\[([^\]]*)\]\([^)]*\)", r"X\1", "\n".join(lines))
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    split = [each for paragraph in paragraphs for each in re.split(r"(?<=[.!?:])\**\s+(?=[A-Z`*(])", paragraph)]
    return [each for each in split if len(each.split()) > 2]
