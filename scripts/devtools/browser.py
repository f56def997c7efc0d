"""A headless Chromium, for tests and pictures of pages. Debian has it as chromium and chromium-driver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def is_installed() -> bool:
    """Whether the browser and its driver are there."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def chromium(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """Yield a Selenium driver of a browser without a window, which has no network. Sizes are in pixels."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--force-device-scale-factor=1", "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},{height}",
    ):  # fmt: skip
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield started
    finally:
        started.quit()
