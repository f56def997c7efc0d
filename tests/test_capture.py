"""What a build does to the process while it traces, and what it tells of models that it cannot trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

import aotpack
from aotpack_loader.errors import CaptureError


def _likelihood(x: Tensor) -> Tensor:
    return Normal(x, 1.0).log_prob(x * 2).sum()


def _by_value(x: Tensor) -> Tensor:
    return _likelihood(x) if x.sum() > 0 else x


@pytest.mark.parametrize("checks", [True, False])
def test_distributions_check_their_arguments_again_after_a_build(tmp_path: Path, checks: bool) -> None:
    before = Distribution._validate_args
    Distribution.set_default_validate_args(checks)
    try:
        aotpack.build(_likelihood, (torch.ones(3),), out=tmp_path / "m.aotpack", targets=("portable",), methods=("infer",))
        assert Distribution._validate_args is checks
        with pytest.raises(CaptureError):
            aotpack.build(_by_value, (torch.ones(3),), out=tmp_path / "n.aotpack", targets=("portable",), methods=("infer",))
        assert Distribution._validate_args is checks
    finally:
        Distribution.set_default_validate_args(before)
