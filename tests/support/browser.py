"""A headless Chromium for tests of pages. They skip where Debian's packages chromium and chromium-driver are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools import browser


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a Selenium driver of a browser without a window; skip where there is none."""
    pytest.importorskip("selenium.webdriver")
    if not browser.is_installed():
        pytest.skip("chromium and chromium-driver are not installed")
    with browser.chromium() as started:
        yield started


class PageUnderTest:
    """A page that is open in the browser."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get_log("browser")  # forgets the page before
        browser.get(path.absolute().as_uri())

    def script(self, code: str, *arguments: object) -> Any:
        return self.browser.execute_script(code, *arguments)

    def complaints(self) -> list[str]:
        """What the browser reported: script errors, blocked requests, violations of the policy."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def texts(self, selector: str) -> list[str]:
        return self.script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)  # type: ignore[no-any-return]
