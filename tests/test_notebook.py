"""What Jupyter shows for a loaded bundle."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import msgspec

import aotpack
from aotpack_loader.integrations.notebook import summary


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_loaded_bundle(portable_digits_bundle: Path) -> None:
    model = aotpack.load(portable_digits_bundle, backend="portable")
    shown = Reader(model._repr_html_())
    for part in ("Digits", "train() with gradients", "images", "float32[batch, 1, 8, 8]", "batch=2..1797", model.aotpack.digest):
        assert part in shown.text


def test_hostile_names_are_text(portable_digits_bundle: Path) -> None:
    program = aotpack.load(portable_digits_bundle, backend="portable").aotpack.program
    plain = Reader(summary(program, [("bundle", "path")])).tags
    named = msgspec.structs.replace(program, name="<script>alert(1)</script>\u202e")
    shown = Reader(summary(named, [("<b>", "<img onerror=x>")]))
    assert shown.tags == plain
    assert r"\u202e" in shown.text
