"""A headless Chromium for tests of pages. They skip where Debian's packages chromium and chromium-driver are missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """Yield a Selenium driver of a browser without a window, which has no network."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--force-device-scale-factor=1", "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},{height}",
    ):  # fmt: skip
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()


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
