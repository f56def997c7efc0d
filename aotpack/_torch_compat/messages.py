"""What torch says while it works: kept from the user's terminal, or found out."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def own_warnings() -> Iterator[None]:
    """Keep torch's own deprecation warnings from the user's terminal, and the user's warning filters from the build."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


@contextlib.contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep torch from logging, with a traceback, what fails on fake tensors: for trials that are expected to fail."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def nothing(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(nothing)
    try:
        yield
    finally:
        logger.removeFilter(nothing)


OLD_IGNORED = "ignore_logger_methods"


_MESSAGES = ("log", "debug", "info", "warn", "warning", "error", "exception", "critical", "fatal")


def message_functions() -> set[Callable[..., Any]]:
    """``print``, ``warnings.warn`` and what emits a message through ``logging``.

    Libraries add to ``logging.Logger`` (transformers: ``warning_once``), so its names are looked up.
    """
    owners = (logging, logging.Logger)
    emitters = {f for owner in owners for name, f in vars(owner).items() if name.partition("_")[0] in _MESSAGES}
    return {print, warnings.warn, *filter(callable, emitters)}
