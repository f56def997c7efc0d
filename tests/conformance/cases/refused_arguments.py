"""Arguments that eager's kernels refuse, and that fake kernels and decompositions take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from devtools.harness import Case, case, const

_REFUSED: dict[str, tuple[Callable[..., object], tuple[Tensor, ...], str]] = {
    "celu, alpha 0": (lambda x: F.celu(x, 0.0), (torch.ones(3),), "alpha cannot be 0"),
    "smooth_l1_loss, a negative beta": (
        lambda x: F.smooth_l1_loss(x, x + 1, beta=-1.0),
        (torch.ones(3),),
        "negative values for beta",
    ),
    "huber_loss, a negative delta": (lambda x: F.huber_loss(x, x + 1, delta=-1.0), (torch.ones(3),), "delta"),
    "addmm, a product that grows": (
        torch.addmm,
        (torch.ones(5, 1), torch.ones(1, 1), torch.ones(1, 1)),
        "must match the existing size",
    ),
    "addmv, a product that grows": (torch.addmv, (torch.ones(5), torch.ones(1, 2), torch.ones(2)), "size mismatch"),
    "addmv of booleans": (
        torch.addmv,
        tuple(torch.ones(n, dtype=torch.bool) for n in ((2,), (2, 3), (3,))),
        "not implemented for 'Bool'",
    ),
    "dot of booleans": (torch.dot, (torch.ones(3, dtype=torch.bool),) * 2, "not implemented for 'Bool'"),
    "logcumsumexp of a whole number": (lambda x: torch.logcumsumexp(x, 0), (torch.tensor(3),), "not implemented for 'Long'"),
    "frac of whole numbers": (torch.frac, (torch.ones(3, dtype=torch.int64),), "not implemented for 'Long'"),
    "silu of whole numbers": (F.silu, (torch.ones(3, dtype=torch.int64),), "not implemented for 'Long'"),
    "softmax of whole numbers": (lambda x: x.softmax(0), (torch.ones(3, dtype=torch.int64),), "not implemented for 'Long'"),
    "gelu of complex numbers": (F.gelu, (torch.ones(3, dtype=torch.complex64),), "not implemented for 'ComplexFloat'"),
    "nansum of complex numbers": (torch.nansum, (torch.ones(3, dtype=torch.complex64),), "does not support complex"),
    "std of whole numbers": (torch.std, (torch.ones(3, dtype=torch.int64),), "only support floating point"),
    "threshold of booleans": (lambda x: F.threshold(x, 1, 2), (torch.ones(3, dtype=torch.bool),), "not implemented for 'Bool'"),
    "avg_pool1d of booleans": (lambda x: F.avg_pool1d(x, 2), (torch.ones(2, 4, dtype=torch.bool),), "not implemented for 'Bool'"),
    "hardshrink, a threshold out of range": (lambda x: F.hardshrink(x, 1e30), (torch.ones(3).half(),), "without overflow"),
    "binary_cross_entropy, whole targets": (F.binary_cross_entropy, (torch.ones(3), torch.ones(3).long()), "Found dtype Long"),
    "arange of booleans": (lambda x: x + torch.arange(2, dtype=torch.bool), (torch.ones(2),), "not implemented for 'Bool'"),
    "logaddexp of whole numbers": (torch.logaddexp, (torch.ones(3, dtype=torch.int64),) * 2, "not implemented for 'Long'"),
    "multi_margin_loss of half precision": (
        F.multi_margin_loss,
        (torch.ones(2, 3).half(), torch.tensor([0, 1])),
        "not implemented for 'Half'",
    ),
    "multilabel_margin_loss, short targets": (
        F.multilabel_margin_loss,
        (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int32)),
        "expected scalar type Long",
    ),
    "soft_margin_loss, targets that grow": (F.soft_margin_loss, (torch.ones(3, 1), torch.ones(3, 3)), "broadcast shape"),
    "binary_cross_entropy_with_logits, weights that grow": (
        lambda x, w: F.binary_cross_entropy_with_logits(x, x, w),
        (torch.ones(3, 3), torch.ones(1, 3, 3)),
        "broadcast shape",
    ),
    "hardtanh, a bound out of range": (lambda x: F.hardtanh(x, -1.0, 1e30), (torch.ones(3).half(),), "without overflow"),
    "softmax as bytes": (lambda x: x.softmax(0, dtype=torch.uint8), (torch.ones(3),), "not implemented for 'Byte'"),
    "layer_norm, a whole bias": (
        lambda x, w, b: F.layer_norm(x, (3,), w, b),
        (torch.ones(2, 3), torch.ones(3), torch.ones(3).long()),
        "expected scalar type Float",
    ),
    "log_ndtr of half precision": (torch.special.log_ndtr, (torch.ones(3).half(),), "not implemented for 'Half'"),
    "pixel_unshuffle of an odd height": (lambda x: F.pixel_unshuffle(x, 2), (torch.ones(1, 0, 1, 2),), "divisible"),
    "a vector times a matrix of another type": (
        lambda x, y: x.__rmatmul__(y),
        (torch.ones(3).double(), torch.ones(2, 3)),
        "same dtype",
    ),
    "clamp of booleans": (torch.clamp, (torch.ones(3, dtype=torch.bool),) * 3, "not implemented for 'Bool'"),
    "cov, weights of another length": (lambda x, w: torch.cov(x, aweights=w), (torch.ones(2, 3), torch.ones(1)), "same numel"),
    "cov, real frequencies": (lambda x, w: torch.cov(x, fweights=w), (torch.ones(2, 3), torch.ones(3)), "integral"),
}
REFUSED = {f"numbers: {name} (eager raises)": message for name, (_, _, message) in _REFUSED.items()}

CASES: list[Case] = [
    case(f"numbers: {name} (eager raises)", function, *map(const, given)) for name, (function, given, _) in _REFUSED.items()
]
