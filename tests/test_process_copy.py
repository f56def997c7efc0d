"""Work beside a build: a copy of the process computes it, where a copy is safe."""

from __future__ import annotations

import os
import sys
import threading
import time
import types
import warnings

import pytest
import torch

from aotpack._torch.api.process_copy import ProcessCopy, ProcessCopyError, beside, in_place


@pytest.mark.copies
def test_a_copy_computes() -> None:
    assert beside(os.getpid)() != os.getpid()


@pytest.mark.parametrize("library", ["jax", "torch_xla"])
def test_no_copy_is_made_beside_jax(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    assert beside(os.getpid)() == os.getpid()


def test_no_copy_is_made_inside_in_place() -> None:
    with in_place():
        assert beside(os.getpid)() == os.getpid()


def _warns() -> int:
    warnings.warn("said by the copy", UserWarning, stacklevel=1)
    return 3


def test_warnings_of_the_copy_are_shown_here() -> None:
    with pytest.warns(UserWarning, match="said by the copy"):
        assert beside(_warns)() == 3


def _ends() -> int:
    os._exit(7)


@pytest.mark.copies
def test_a_copy_that_ends_early_is_an_error() -> None:
    with pytest.raises(ProcessCopyError, match=r"exited with 7"):
        beside(_ends)()


@pytest.mark.copies
def test_a_copy_whose_result_is_not_needed_is_ended() -> None:
    copy = ProcessCopy()
    if copy.fork():
        time.sleep(60)
        os._exit(0)
    copy.end()
    with pytest.raises(ProcessCopyError, match="was ended by SIGKILL"):
        copy.result()
    copy.end()  # nothing is left to end


@pytest.mark.copies
def test_a_copy_waits_for_no_thread_that_it_lacks() -> None:
    """Kernels for large tensors use the threads that this process started. A copy has none of these."""
    ones = torch.ones(1000, 1000)
    assert ones.triu().sum() == 500500
    asked, found = beside(lambda: ones.triu().sum().item()), list[object]()
    waiting = threading.Thread(target=lambda: found.append(asked()), daemon=True)
    waiting.start()
    waiting.join(timeout=60)
    assert found == [500500]
