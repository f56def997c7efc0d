"""Gradients of real Fourier transforms as real transforms.

The derivative of ``rfft`` pads the gradient of the half spectrum with zeros, transforms the whole
spectrum, and takes the real part. In a graph without writes, the zeros take four passes over memory.
The inverse real transform of the half spectrum has the same result, and needs no zeros. It counts
each frequency twice except the first and, of an even length, the last. So the others are halved
before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from ...api.fake_tensors import fake_mode_of
from ...api.graph_modules import graph_modules_in
from ...api.nodes import value_of

_aten = torch.ops.aten


class _HalfSpectrum(NamedTuple):
    """A half spectrum whose inverse transform has a real part that is read.

    Attributes:
        half: the node of the spectrum, with ``n // 2 + 1`` frequencies in dimension ``dims[-1]``.
        dims: the dimensions that are transformed.
        scale: how the transform is normalized, as ``_fft_c2c`` takes it.
        length: n.
    """

    half: Node
    dims: list[int]
    scale: int
    length: int


def real_gradients_of_spectra(module: GraphModule) -> None:
    """Compute real parts of transforms of spectra that were padded with zeros by real transforms."""
    for part in graph_modules_in(module):
        reals = part.graph.find_nodes(op="call_function", target=_aten.select.int)
        found = [(node, spectrum) for node in reals if (spectrum := _half_spectrum(node)) is not None]
        for node, spectrum in found:
            _replace(node, spectrum)
        if found:
            part.graph.eliminate_dead_code()
            part.recompile()


def _half_spectrum(real: Node) -> _HalfSpectrum | None:
    """What the ``select`` node ``real`` reads, if it is the real part of such a transform and no result."""
    pairs, dim, index = _arguments(real)
    if index != 0 or any(user.op == "output" for user in real.users):
        return None
    transformed = _read_once(pairs, _aten.view_as_real.default)
    whole = _read_once(_arguments(transformed)[0], _aten._fft_c2c.default) if transformed else None
    if whole is None or dim not in (-1, value_of(real).dim()):
        return None
    padded, dims, scale, forward = _arguments(whole)
    scattered = None if forward else _read_once(padded, _aten.slice_scatter.default)
    if scattered is None:
        return None
    given = _arguments(scattered)
    defaults: tuple[Any, ...] = (0, None, None, 1)
    zeros, source, along, start, end, step = given + defaults[len(given) - 2 :]
    copied = _read_once(source, _aten.copy.default)
    length = value_of(scattered).shape[along]
    if copied is None or not _is_zero(zeros) or step != 1 or along != dims[-1] or type(length) is not int:
        return None
    half = _arguments(copied)[1]
    if (
        (start, end) != (0, length // 2 + 1)
        or value_of(half).shape != value_of(copied).shape
        or value_of(half).dtype != value_of(copied).dtype
    ):
        return None
    return _HalfSpectrum(half, dims, scale, length)


def _replace(real: Node, spectrum: _HalfSpectrum) -> None:
    """Replace ``real`` by the inverse real transform of ``spectrum``."""
    graph, value = real.graph, value_of(spectrum.half)

    def added(target: Any, *args: Any, **kwargs: Any) -> Node:
        made = graph.call_function(target, args, kwargs)
        with fake_mode_of(graph):
            known = target(*torch.fx.map_arg(args, value_of), **kwargs)
        made.meta = {**real.meta, "val": known}
        return made

    frequencies = spectrum.length // 2 + 1
    number, place = value.real.dtype, value.device
    with graph.inserting_before(real):
        index = added(
            torch.ops.prims.iota.default, frequencies, start=0, step=1, dtype=torch.int64, device=place, requires_grad=False
        )
        twice = added(_aten.gt.Scalar, index, 0)
        if spectrum.length % 2 == 0:
            twice = added(_aten.logical_and.default, twice, added(_aten.lt.Scalar, index, frequencies - 1))
        one, part = (added(_aten.full.default, [], share, dtype=number, device=place) for share in (1.0, 0.5))
        shares = added(_aten.where.self, twice, part, one)
        shares = added(_aten.view.default, shares, [frequencies] + [1] * (value.dim() - 1 - spectrum.dims[-1]))
        scaled = added(_aten.mul.Tensor, spectrum.half, shares)
        replaced = added(_aten._fft_c2r.default, scaled, spectrum.dims, spectrum.scale, spectrum.length)
    real.replace_all_uses_with(replaced)


def _read_once(node: Any, operator: Any) -> Node | None:
    """``node``, if it calls the operator and one other node reads it."""
    return node if isinstance(node, Node) and node.target is operator and len(node.users) == 1 else None


def _is_zero(node: Node) -> bool:
    return node.target is _aten.full.default and _arguments(node)[1] == 0


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args
