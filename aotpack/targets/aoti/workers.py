"""Threads that compile."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor


class Workers:
    """Threads for a target: ``compilers`` run commands, and ``chains`` wait for them."""

    def __init__(self) -> None:
        self.compilers, self.chains = ThreadPoolExecutor(os.cpu_count()), ThreadPoolExecutor(256)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.chains.shutdown()
        self.compilers.shutdown()
