"""Entries for decompositions: torch's own rules, and operators for which torch has no correct rule."""

from __future__ import annotations

from functools import partial

from ..register import Fix

_fix = partial(Fix, component="decomposition")
_RULES = "torch._decomp.decompositions"

FIXES = (
    _fix(
        id="decomposition-interpolate-by-a-factor",
        severity="wrong-values",
        summary="`interpolate(x, scale_factor=1.3)` that leaves a size as it is gives other values than eager's kernel.",
        upstream="pytorch#198201",
        apply="fixes.decomposition.interpolation:interpolate_by_sizes",
        patches=(f"{_RULES}._upsample_nearest", f"{_RULES}._upsample_linear"),
    ),
    _fix(
        id="decomposition-strides-of-one-hot",
        severity="strides",
        summary="`one_hot` has the strides of the classes, and eager's kernel returns a contiguous tensor.",
        apply="fixes.decomposition.above_autograd:make_one_hot_contiguous",
        patches=(f"{_RULES}.one_hot",),
    ),
    _fix(
        id="decomposition-strides-of-rrelu",
        severity="strides",
        summary="`rrelu` has the strides of what is read, and eager's kernel returns a contiguous tensor.",
        apply="fixes.decomposition.above_autograd:make_rrelu_contiguous",
        patches=("torch.ops.aten.rrelu.default", "torch.ops.aten.rrelu_with_noise.default"),
    ),
    _fix(
        id="decomposition-products-as-views",
        severity="strides",
        summary="`matmul` of batches is a view of a product of matrices; eager's result is not a view.",
        apply="fixes.decomposition.above_autograd:clone_batched_matmul",
        patches=(f"{_RULES}.matmul",),
    ),
    _fix(
        id="decomposition-pools-as-views",
        severity="strides",
        summary="`max_pool1d` without gradients is a view of a larger result; eager's result is not a view.",
        apply="fixes.decomposition.above_autograd:clone_max_pool1d",
        patches=("torch.ops.aten.max_pool1d.default",),
    ),
    _fix(
        id="decomposition-polygamma-in-place",
        severity="refuses",
        summary="`polygamma_` cannot be traced: it has no functional form.",
        apply="fixes.decomposition.above_autograd:trace_inplace_polygamma",
        patches=("torch.ops.aten.polygamma_.default",),
    ),
    _fix(
        id="decomposition-labels-after-the-end",
        severity="wrong-values",
        summary="`multilabel_margin_loss` counts labels after the first -1; the loss of one example has a dimension.",
        upstream="pytorch#141017",
        apply="fixes.decomposition.margin_losses:ignore_labels_after_the_end",
        patches=("torch.ops.aten.multilabel_margin_loss_forward.default",),
    ),
    _fix(
        id="decomposition-margins-just-met",
        severity="wrong-values",
        summary="`multi_margin_loss` has a gradient where a margin is just met, and a dimension where eager's has none.",
        apply="fixes.decomposition.margin_losses:trace_multi_margin_loss",
        patches=("torch.ops.aten.multi_margin_loss.default",),
    ),
    _fix(
        id="decomposition-covariance",
        severity="refuses",
        summary="`torch.cov` with weights cannot be traced: it looks at the values of the weights.",
        apply="fixes.decomposition.above_autograd:trace_weighted_covariance",
        patches=("torch.ops.aten.cov.default",),
    ),
    _fix(
        id="decomposition-padded-sparse-embeddings",
        severity="refuses",
        summary="Sparse gradients of embeddings with a `padding_idx` cannot be traced: their number of entries depends on data.",
        apply="fixes.decomposition.above_autograd:trace_padded_sparse_embeddings",
        patches=("torch.ops.aten.embedding_backward.default",),
    ),
    _fix(
        id="decomposition-allclose-in-derivatives",
        severity="refuses",
        summary="Gradients of complex singular vectors cannot be traced: torch's derivative looks at values.",
        apply="fixes.decomposition.above_autograd:assert_allclose_in_derivatives",
        patches=("torch.ops.aten.allclose.default",),
    ),
    _fix(
        id="decomposition-dropout-of-recurrent-layers",
        severity="wrong-values",
        summary="The dropout between recurrent layers is forgotten (`num_layers < i - 1` is never true).",
        apply="fixes.decomposition.recurrent_dropout:apply_dropout_between_layers",
        patches=(f"{_RULES}._rnn_helper",),
    ),
    _fix(
        id="decomposition-lstm-of-inference",
        severity="wrong-values",
        summary="An LSTM whose weights alone need gradients is traced as oneDNN's inference kernel, which has none.",
        upstream="pytorch#158007",
        apply="fixes.decomposition.lstms:trace_lstms_for_training",
        patches=(f"{_RULES}.select_one_layer_lstm_function", f"{_RULES}.one_layer_lstm"),
    ),
    _fix(
        id="decomposition-strided-scatter",
        severity="wrong-values",
        summary="`x[4:].as_strided_scatter(y, (2,), (1,), 1)` counts elements in a contiguous copy of the part, not in memory.",
        upstream="pytorch#140171",
        apply="fixes.decomposition.tables:as_strided_scatter",
        kind="table",
        patches=("torch.ops.aten.as_strided_scatter.default",),
    ),
    _fix(
        id="decomposition-zeros-without-memory",
        severity="wrong-values",
        summary="AOTInductor returns zeros without memory, which the gradient of `sgn` is, on another device.",
        apply="fixes.decomposition.tables:allocate_zeros",
        kind="table",
        patches=("torch.ops.aten._efficientzerotensor.default",),
    ),
    _fix(
        id="decomposition-take-by-one-index",
        severity="wrong-values",
        summary="`take` by an index without dimensions does not compile; from torch 2.14 on, it is a view of its argument.",
        upstream="pytorch#186138",
        apply="fixes.decomposition.tables:take",
        kind="table",
        patches=("torch.ops.aten.take.default",),
    ),
    _fix(
        id="decomposition-powers-of-two",
        severity="wrong-values",
        summary="`ldexp` of half precision and `float32` is computed in half precision, and returned so.",
        upstream="pytorch#197091",
        apply="fixes.decomposition.tables:ldexp",
        kind="table",
        patches=("torch.ops.aten.ldexp.Tensor",),
        broken=("2.13", "2.14", "2.15"),
        since="2.13",
    ),
    _fix(
        id="decomposition-lists-of-numbers",
        severity="compile-error",
        summary="`_foreach_mul` with a number for each tensor raises in AOTInductor's code.",
        apply="fixes.decomposition.tables:decompose_foreach_with_scalars",
        kind="table",
        patches=("torch.ops.aten._foreach_mul.ScalarList",),
    ),
    _fix(
        id="decomposition-fractional-pool-gradient",
        severity="refuses",
        summary="Gradients of `fractional_max_pool3d` cannot be traced: torch knows no sizes of its own kernel's result.",
        apply="fixes.decomposition.tables:trace_fractional_pool_gradient",
        kind="table",
        patches=("torch.ops.aten.fractional_max_pool3d_backward.default",),
    ),
    _fix(
        id="decomposition-unsafe-split",
        severity="strides",
        summary="`unsafe_split` into one part is the tensor itself in a graph; eager gives a tensor of its own in its memory.",
        apply="fixes.decomposition.tables:keep_unsafe_splits_separate",
        kind="table",
        patches=("torch.ops.aten.unsafe_split.Tensor", "torch.ops.aten.unsafe_split_with_sizes.default"),
    ),
)
