"""Hides torch's warnings and log lines during a build, and finds Python functions that emit
messages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .building import builds


@contextlib.contextmanager
def own_warnings() -> Iterator[None]:
    """Hide torch's deprecation warnings, what Inductor says of complex tensors, and tracebacks of the
    anomaly mode that AOTAutograd turns on. The user's warning filters do not affect the build.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")  # it calls kernels
        warnings.filterwarnings("ignore", "Error detected in ")  # the error itself follows
        warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights\[0\]")  # recurrent layers do so, not the user
        yield


@contextlib.contextmanager
def quiet_torch_logs() -> Iterator[None]:
    """Hide torch's log lines below the level CRITICAL. Those of other threads are shown.

    While a model is traced, torch logs every failure on fake tensors with a traceback, even if
    another front end can trace the model. Our own errors contain what matters of it. With
    ``TORCH_LOGS`` set, the lines are shown.
    """
    names = [] if os.environ.get("TORCH_LOGS") else [n for n in logging.root.manager.loggerDict if n.split(".")[0] == "torch"]
    loggers = [logging.getLogger(name) for name in names]

    def is_shown(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL or not builds()

    for logger in loggers:
        logger.addFilter(is_shown)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_shown)


_MESSAGES = ("log", "debug", "info", "warn", "warning", "error", "exception", "critical", "fatal")


def message_functions() -> set[Callable[..., Any]]:
    """``print``, ``warnings.warn`` and functions that emit a message through ``logging``.

    Libraries add methods to ``logging.Logger`` (transformers: ``warning_once``), so its attributes
    are searched.
    """
    owners = (logging, logging.Logger)
    emitters = {f for owner in owners for name, f in vars(owner).items() if name.partition("_")[0] in _MESSAGES}
    return {print, warnings.warn, *filter(callable, emitters)}
