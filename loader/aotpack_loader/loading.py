"""``load``: reads a bundle and returns a trainable module."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from . import _process
from .opening import from_record
from .options import LoadOptions

if TYPE_CHECKING:
    import torch

    from .module.program import LoadedProgram


class BackendWarning(UserWarning):
    """A bundle fell back from native code to the portable interpreter."""


def load(
    bundle: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    backend: str | None = None,
    weights: bool = True,
    trust: str | Collection[str] | None = None,
    operators: Collection[str] = (),
    subclasses: Collection[type] = (),
    verify: Literal["code", "full"] = "code",
    check: Literal["arguments", "full"] = "arguments",
    donate: bool = False,
    allow_untested_torch: bool = False,
    digest: str | None = None,
    lock: str | os.PathLike[str] | None = None,
    policy: str | os.PathLike[str] | None = None,
) -> LoadedProgram:
    """Load a bundle as a trainable ``nn.Module``.

    Args:
        bundle: a ``.aotpack`` file, an unpacked bundle directory, or a bundle in a registry
            (``"oci://host/repository:tag"``), which is pulled to the cache. That needs
            ``aotpack-loader[registry]``. Files of other stores (``s3://``, ``gs://``) come through
            fsspec.
        device: where to run, and where parameters and buffers are then. ``"cpu"``; any other device
            that this torch has (``"cuda:1"``, ``"mps"``), where the portable graphs run; or an XLA device
            (``"xla"``). None: the CPU, or the device of a target named by ``backend``.
        backend: a target by name (``"cpu:x86-64-v3"``, ``"xla:cpu"``) or kind (``"cpu"``,
            ``"portable"``). None: the best target that fits this machine and is trusted.
        weights: False leaves parameters and persistent buffers uninitialised, to be filled by
            ``load_state_dict``.
        trust: permission to run native code that was not built here. ``"all"``, or the bundle's
            digest (``sha256:…``), or a key that signed it (``key:acme.pub``), or several of these.
        operators: namespaces of operators beyond torch's own (``("torchvision",)``) that the graphs
            of an untrusted bundle may call. The packages that register them must be imported first.
        subclasses: classes of tensors (``[TwoTensor]``) that arguments, state, results or gradients
            may have. A bundle only names them, and never causes an import. The class itself defines
            how such a tensor behaves.
        verify: ``"code"`` checks all digests except those of the weights, which are mapped.
            ``"full"`` reads and checks the weights too.
        check: ``"arguments"`` refuses calls that do not fit. ``"full"`` also asserts at every call
            what the build assumed, and raises :class:`~aotpack_loader.errors.CheckError`. It is
            slow, and meant for debugging.
        donate: on an XLA device, True updates buffers and arguments in their own memory if the
            model writes to them. Tensors that share this memory (after ``other.copy_(buffer)`` or
            ``load_state_dict``) must not be used any more; torch_xla raises an error then. False:
            each call allocates new memory.
        allow_untested_torch: run native code on a release of torch on which it was not tried. torch
            must have all functions that the code calls. Compare the results with
            ``backend="portable"``.
        digest: the digest that the bundle must have. It also permits its native code, as the same
            digest does in ``trust`` or in a reference (``"oci://host/repository@sha256:…"``).
        lock: a lock file that must have an entry for the reference. None: ``aotpack.lock`` in the
            working directory (or ``$AOTPACK_LOCK``) is used where it has one.
        policy: a policy file, which must allow the bundle. It applies beside the one that
            ``$AOTPACK_POLICY`` names.

    Raises:
        BundleError: the file is not a valid bundle, or has another digest.
        RegistryError: the bundle cannot be pulled.
        TargetError: no target can run here, or not the requested one.
        SubclassError: the bundle holds tensors of a class that is not among ``subclasses``.
        TrustError: a native target was requested, or third-party operators are called, and it is
            not trusted.
        PolicyError: a policy does not allow the bundle.
        DirectoryError: a native target was requested, and the directory for its code cannot be
            used.
    """
    options = LoadOptions(**{name: value for name, value in locals().items() if name != "bundle"})
    with _process.collector_paused():
        if module := from_record.load(bundle, options):
            return module
        from .opening.documents import load_with  # not needed for a bundle whose start is recorded

        module, fallback = load_with(bundle, options.checked())
    if fallback:
        from .text import visible_lines  # only for warnings

        warnings.warn(visible_lines(fallback), BackendWarning, stacklevel=2)
    return module
