"""What torch says while it works: kept from the user's terminal, or found out."""

from __future__ import annotations

import contextlib
import logging
import os
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
def quiet_torch_logs() -> Iterator[None]:
    """Keep torch's log lines below the level of a crash from the user's terminal.

    While a model is traced, torch logs with a traceback whatever fails on fake tensors, also where another front end
    takes the model. What matters of it is in our own errors. ``TORCH_LOGS`` shows the lines all the same.
    """
    names = [] if os.environ.get("TORCH_LOGS") else [n for n in logging.root.manager.loggerDict if n.split(".")[0] == "torch"]
    loggers = [logging.getLogger(name) for name in names]

    def is_fatal(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL

    for logger in loggers:
        logger.addFilter(is_fatal)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_fatal)


OLD_IGNORED = "ignore_logger_methods"


_MESSAGES = ("log", "debug", "info", "warn", "warning", "error", "exception", "critical", "fatal")


def message_functions() -> set[Callable[..., Any]]:
    """``print``, ``warnings.warn`` and what emits a message through ``logging``.

    Libraries add to ``logging.Logger`` (transformers: ``warning_once``), so its names are looked up.
    """
    owners = (logging, logging.Logger)
    emitters = {f for owner in owners for name, f in vars(owner).items() if name.partition("_")[0] in _MESSAGES}
    return {print, warnings.warn, *filter(callable, emitters)}
