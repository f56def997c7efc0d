"""``as_strided`` whose elements overlap as windows of rows: the same view, and the same gradient."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from aotpack._torch.fixes.aot_autograd.overlaps import in_windows

DIMS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 4, 8])), min_size=2, max_size=4)


@settings(suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
@given(DIMS, st.sampled_from([None, 0, 3]), st.integers(0, 5), st.integers(0, 2**16))
def test_windows_are_the_view_and_give_its_gradient(
    dims: list[tuple[int, int]], offset: int | None, rest: int, seed: int
) -> None:
    size, stride = [dim[0] for dim in dims], [dim[1] for dim in dims]
    reach = 1 + sum((length - 1) * step for length, step in dims) + (offset or 0)
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(reach + rest, dtype=torch.float64, generator=generator, requires_grad=True)
    found = in_windows(base, size, stride, offset)
    event("no windows" if found is None else f"{len(size)} dimensions")
    assume(found is not None)
    expected = base.as_strided(size, stride, offset)
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())
    assert found.storage_offset() == expected.storage_offset()
    assert torch.equal(found, expected)
    weights = torch.randn(size, dtype=torch.float64, generator=generator)
    gradients = [torch.autograd.grad((view * weights).sum(), base)[0] for view in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_what_is_made_of_windows() -> None:
    """Two elements at one place, and strides that are multiples of the smallest of those that overlap."""
    base = torch.arange(32.0)
    assert in_windows(base, (3, 4), (2, 1)) is not None
    assert in_windows(base, (2, 3, 2, 3), (12, 2, 2, 1)) is not None
    assert in_windows(base, (3, 4), (4, 1)) is None  # no overlap
    assert in_windows(base, (2, 3), (3, 2)) is None  # no multiples
    assert in_windows(base, (3, 4), (0, 1)) is None  # repeated: torch adds those up before it looks
