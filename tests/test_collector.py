"""The garbage collector during a build and a load."""

from __future__ import annotations

import gc

import pytest

from aotpack.pipeline.collector import gc_tuned_for_build
from aotpack_loader import _process


@pytest.mark.parametrize("threshold", [700, 0, 50_000])
def test_a_build_leaves_the_collector_as_it_was(threshold: int) -> None:
    before = gc.get_threshold()
    gc.set_threshold(threshold, 7, 9)
    try:
        with gc_tuned_for_build():
            assert gc.get_threshold() == (threshold if threshold != 700 else 10_000, 7, 9)
            with gc_tuned_for_build():
                pass
            assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == (threshold, 7, 9)
        assert gc.get_freeze_count() == 0
    finally:
        gc.set_threshold(*before)


def test_what_the_caller_froze_stays_so() -> None:
    gc.freeze()
    try:
        with gc_tuned_for_build():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_garbage_of_a_build_is_found() -> None:
    class Circle:
        def __init__(self) -> None:
            self.itself = self

    with gc_tuned_for_build():
        made = Circle()
        assert any(found is made for found in gc.get_objects())
        del made
        assert gc.collect() > 0


def test_a_user_may_keep_the_collector_to_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    with _process.collector_paused():
        assert not gc.isenabled()
    monkeypatch.setenv("AOTPACK_TUNE_PROCESS", "0")
    with gc_tuned_for_build(), _process.collector_paused():
        assert gc.isenabled()
        assert (gc.get_threshold(), gc.get_freeze_count()) == before
