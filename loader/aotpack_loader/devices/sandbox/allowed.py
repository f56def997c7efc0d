"""The operators that graphs of untrusted bundles may call, each with the rules for what its kernel relies on.

A name is that of a packet of ``aten``, or of another namespace with its name before it. Its default overload is meant,
or those after the colon. An operator is listed once, under its rules. The fuzzer ``scripts/fuzz operators``
calls each of them with arguments that do not agree, under guard pages.

Not listed, beside what no bundle may use (:mod:`.operators`):

* kernels that take opaque or packed data: ``mkldnn_rnn_layer_backward`` with its workspace, quantised and sparse tensors,
  ``_transformer_encoder_layer_fwd``;
* kernels of other devices (``cudnn_*``, ``miopen_*``, ``mps_*``), and ``_fused_*`` optimizers, which trust all shapes;
* ``binomial``, whose kernel does not end for some counts, and ``batch_norm_backward``, whose reserve is opaque;
* ``linalg_ldl_solve``, which uses pairs of pivots unchecked, and has no gradient;
* operators of ``prims`` that torch implements in Python, as their first call imports the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import plane_rules, rules, sequence_rules
from .rules import Rule

_PLAIN: Final = """
    __lshift__:Scalar __rshift__:Scalar _assert_async:msg _assert_scalar _assert_tensor_metadata _conj
    _conj_physical _foreach_add:List _foreach_mul:List,ScalarList _histogramdd_bin_edges _histogramdd_from_bin_cts
    _linalg_check_errors _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense
    _log_softmax _neg_view _prelu_kernel _prelu_kernel_backward _safe_softmax _softmax _standard_gamma
    _standard_gamma_grad _to_copy _trilinear _unique _unique2 _unsafe_view abs acos acosh add:Scalar,Tensor addbmm
    addcdiv addcmul addmm addmv addr alias alias_copy all:default,dim,dims allclose amax amin aminmax angle
    any:default,dim,dims argmax argmin as_strided as_strided_copy as_strided_scatter asin asinh atan atan2 atanh
    avg_pool2d avg_pool3d baddbmm bernoulli:default,p binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits bitwise_and:Scalar,Tensor bitwise_left_shift:Tensor bitwise_not
    bitwise_or:Scalar,Tensor bitwise_right_shift:Tensor bitwise_xor:Scalar,Tensor block_diag bmm bucketize:Tensor
    cat cauchy ceil celu channel_shuffle cholesky cholesky_inverse cholesky_solve clamp:Tensor,default
    clamp_max:Tensor,default clamp_min:Tensor,default clone complex copy copysign:Scalar,Tensor
    cos cosh count_nonzero:default,dim_IntList cummax cummin cumprod cumsum deg2rad detach detach_copy
    diagonal diagonal_copy diagonal_scatter digamma dist div:Scalar,Tensor dot elu elu_backward
    empty_like eq:Scalar,Tensor equal erf erfc erfinv exp exp2 expm1 exponential fill:Scalar,Tensor flip floor fmax
    fmin frac frexp:Tensor full_like ge:Scalar,Tensor gelu geometric geqrf glu glu_backward gt:Scalar,Tensor
    hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward
    hardtanh hardtanh_backward hash_tensor heaviside histogram:bins_tensor huber_loss
    huber_loss_backward hypot i0 igamma igammac isin:Tensor_Tensor isinf isnan isneginf isposinf
    ldexp:Tensor le:Scalar,Tensor leaky_relu leaky_relu_backward lerp:Scalar,Tensor lgamma lift_fresh
    lift_fresh_copy linalg_cholesky_ex linalg_cross linalg_eig linalg_householder_product linalg_inv_ex linalg_lstsq
    linalg_lu linalg_lu_factor_ex linalg_matrix_exp linalg_pinv:atol_rtol_tensor linalg_qr linalg_solve_triangular
    linalg_vector_norm log log10 log1p log2 log_normal log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2
    logcumsumexp logical_and logical_not logical_or logical_xor logit logit_backward logsumexp lt:Scalar,Tensor
    masked_fill:Scalar,Tensor max:default,dim max_pool2d_with_indices max_pool3d_with_indices maximum
    mean:default,dim median min:default,dim minimum mish mish_backward mm mse_loss
    mse_loss_backward mul:Scalar,Tensor mv nan_to_num nanmedian nansum narrow_copy
    native_dropout native_dropout_backward native_layer_norm ne:Scalar,Tensor neg nextafter norm:ScalarOpt_dim
    normal:Tensor_Tensor,Tensor_float,float_Tensor,float_float normal_functional ones_like ormqr permute
    permute_copy pixel_shuffle pixel_unshuffle poisson polar pow:Scalar,Tensor_Scalar,Tensor_Tensor
    prod:default,dim_int rad2deg rand_like randint_like:default,low_dtype randn_like random:to reciprocal relu
    renorm roll rot90 round:decimals,default rrelu_with_noise_backward rrelu_with_noise_functional rsqrt
    rsub:Scalar,Tensor scalar_tensor select:int select_scatter sgn sigmoid sigmoid_backward sign
    signbit silu silu_backward sin sinc sinh slice:Tensor slice_copy:Tensor slice_scatter
    smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softplus softplus_backward
    softshrink softshrink_backward sort:default,stable special_airy_ai special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e
    special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_spherical_bessel_j0 special_xlog1py split_with_sizes split_with_sizes_copy sqrt
    squeeze:default,dim,dims squeeze_copy:default,dim stack std:correction std_mean:correction sub:Scalar,Tensor
    sum:default,dim_IntList sym_numel sym_size:int sym_storage_offset sym_stride:int t t_copy tan tanh tanh_backward
    threshold threshold_backward topk trace transpose:int transpose_copy:int triangular_solve tril triu trunc unfold
    unfold_copy uniform unique_consecutive unique_dim unsqueeze unsqueeze_copy var:correction var_mean:correction
    vdot view:default,dtype view_as_complex view_as_real where:self xlogy:Tensor zero zeros_like
    prims.convert_element_type
"""
"""Their kernels check shapes, types and indices themselves."""

_RULED: Final[list[tuple[Sequence[Rule], str]]] = [
    # Random indices into a plane, normalisation
    ([plane_rules.pool_backward(2)], "max_pool2d_with_indices_backward adaptive_max_pool2d_backward"),
    ([plane_rules.pool_backward(3)], "max_pool3d_with_indices_backward adaptive_max_pool3d_backward"),
    ([plane_rules.pool_backward(2)], "fractional_max_pool2d_backward"),
    ([plane_rules.pool_backward(3)], "fractional_max_pool3d_backward"),
    ([rules.copied("random_samples"), plane_rules.random_samples(2)], "fractional_max_pool2d"),
    ([rules.copied("random_samples"), plane_rules.random_samples(3)], "fractional_max_pool3d"),
    ([plane_rules.pool_backward(2, indices=None)], "_adaptive_avg_pool2d_backward avg_pool2d_backward"),
    ([plane_rules.pool_backward(3, indices=None)], "_adaptive_avg_pool3d_backward avg_pool3d_backward"),
    (
        [rules.layer_norm_backward, rules.contiguous("grad_out", "input", "mean", "rstd", "weight", "bias")],
        "native_layer_norm_backward",
    ),
    (
        [rules.group_norm, rules.contiguous("grad_out", "input", "mean", "rstd", "weight", "bias")],
        "native_group_norm native_group_norm_backward",
    ),
    ([rules.contiguous("self")], "kthvalue median:dim mode nanmedian:dim"),
    (
        [
            rules.channels("weight", "bias", "running_mean", "running_var"),
            rules.statistics,
            rules.copied("running_mean", "running_var"),
        ],
        "native_batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit_no_training",
    ),
    ([rules.channels("weight", "bias"), rules.trains], "_native_batch_norm_legit:no_stats"),
    (
        [
            rules.same_shape("grad_out", "input"),
            rules.same_dtype("grad_out", "input"),
            rules.channels("weight", "running_mean", "running_var"),
            rules.statistics,
        ],
        "native_batch_norm_backward",
    ),
    (
        [rules.same_shape("grad_output", "output"), rules.same_dtype("grad_output", "output"), rules.softmax],
        "_softmax_backward_data",
    ),
    (
        [rules.same_shape("grad_output", "output"), rules.same_dtype("grad_output", "output"), rules.softmax],
        "_log_softmax_backward_data",
    ),
    ([rules.same_shape("grad_output", "self"), rules.same_dtype("grad_output", "self")], "gelu_backward"),
    # Padding and resampling
    (
        [plane_rules.padded],
        "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
        "replication_pad3d",
    ),
    ([plane_rules.pad_backward(1, reflects=True)], "reflection_pad1d_backward"),
    ([plane_rules.pad_backward(2, reflects=True)], "reflection_pad2d_backward"),
    ([plane_rules.pad_backward(3, reflects=True)], "reflection_pad3d_backward"),
    ([plane_rules.pad_backward(1, reflects=False)], "replication_pad1d_backward"),
    ([plane_rules.pad_backward(2, reflects=False)], "replication_pad2d_backward"),
    ([plane_rules.pad_backward(3, reflects=False)], "replication_pad3d_backward"),
    ([plane_rules.grid(2)], "grid_sampler_2d grid_sampler_2d_backward"),
    ([plane_rules.grid(3)], "grid_sampler_3d grid_sampler_3d_backward"),
    (
        [plane_rules.antialiased],
        "_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward",
    ),
    (
        [plane_rules.scaled],
        "_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d "
        "_upsample_nearest_exact2d_backward upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d "
        "upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d "
        "upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d "
        "upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward",
    ),
    ([plane_rules.unfolded], "unfold_backward"),
    # Distances, transforms, factors
    ([sequence_rules.pairs], "_pdist_forward _pdist_backward"),
    ([sequence_rules.distances], "_cdist_forward _cdist_backward"),
    ([sequence_rules.transform], "_fft_c2c _fft_r2c _fft_c2r"),
    ([sequence_rules.pivots], "lu_unpack"),
    ([sequence_rules.solved], "linalg_lu_solve"),
    ([sequence_rules.segments], "segment_reduce _segment_reduce_backward"),
    ([sequence_rules.recurrent], "mkldnn_rnn_layer"),
    (
        [rules.no_overflow],
        "remainder:Scalar,Tensor,Scalar_Tensor fmod:Scalar,Tensor floor_divide:default div:Scalar_mode,Tensor_mode",
    ),
    ([rules.no_least_integers], "gcd lcm"),
    # Indices
    (
        [rules.read_twice],
        "_unsafe_index:Tensor _unsafe_index_put gather index:Tensor index_add index_copy "
        "index_fill:int_Scalar,int_Tensor index_put index_reduce index_select masked_scatter masked_select put "
        "scatter:reduce,src,value,value_reduce scatter_add "
        "scatter_reduce:two searchsorted:Tensor take",
    ),
    ([rules.elements("minlength")], "bincount"),
    ([rules.elements("sizes")], "masked_scatter_backward"),
    ([plane_rules.planes], "max_unpool2d max_unpool3d"),
    ([rules.copied("self")], "nonzero"),
    ([rules.in_range("indices", rules.size("weight"))], "embedding"),
    (
        [
            rules.in_range("indices", rules.number("num_weights")),
            rules.elements("num_weights"),
            sequence_rules.embedded,
        ],
        "embedding_dense_backward",
    ),
    ([sequence_rules.bags], "_embedding_bag _embedding_bag_forward_only"),
    (
        [sequence_rules.bags_backward],
        "_embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward",
    ),
    ([sequence_rules.masked_indices], "_unsafe_masked_index _unsafe_masked_index_put_accumulate"),
    ([sequence_rules.repeats], "repeat_interleave:Tensor"),
    ([sequence_rules.classes], "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"),
    ([sequence_rules.margin_classes], "multi_margin_loss multi_margin_loss_backward"),
    ([sequence_rules.margin_labels], "multilabel_margin_loss_forward multilabel_margin_loss_backward"),
    ([sequence_rules.ctc], "_ctc_loss:default,Tensor _ctc_loss_backward:default,Tensor"),
    # Attention, convolution
    (
        [
            sequence_rules.attention,
            rules.rows_apart("query", "key", "value", "grad_out", "out"),
            rules.contiguous("logsumexp"),
        ],
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    ([sequence_rules.convolution], "convolution"),
    ([sequence_rules.convolved], "convolution_backward"),
    # Sizes that a graph states
    (
        [rules.extents("output_size"), plane_rules.planes],
        "adaptive_max_pool2d adaptive_max_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d",
    ),
    (
        [rules.elements("size")],
        "full empty:memory_format zeros ones rand randn new_full new_empty new_zeros new_ones expand randint:default,low",
    ),
    ([rules.elements("size")], "empty_permuted empty_strided new_empty_strided expand_copy view_copy"),
    ([rules.elements("size"), rules.copied("self")], "nonzero_static"),
    ([rules.elements("n", "m")], "randperm"),
    ([rules.product("n", "m")], "eye:default,m"),
    ([rules.elements("repeats")], "repeat"),
    (
        [rules.elements("steps")],
        "linspace:default,Scalar_Tensor,Tensor_Scalar,Tensor_Tensor logspace:default,Scalar_Tensor,Tensor_Scalar,Tensor_Tensor",
    ),
    ([plane_rules.planes], "col2im"),
    ([plane_rules.columns], "im2col"),
    ([plane_rules.diagonals], "diag_embed"),
    ([rules.elements("num_samples")], "multinomial"),
    ([rules.product("row", "col")], "tril_indices triu_indices"),
    ([rules.elements("input_sizes")], "select_backward slice_backward diagonal_backward"),
    ([rules.elements("bins")], "histc histogram:bin_ct"),
    ([rules.elements("window_length")], "hann_window"),
    ([rules.counted], "arange:default,start,start_step prims.iota"),
    ([rules.between("p", 1, 4096)], "mvlgamma"),
    ([rules.between("n", 0, 1 << 20), rules.at_least("self", -(1 << 16))], "polygamma"),
    ([rules.at_least("other", -(1 << 16))], "special_zeta"),
    ([rules.few_results("self", "dim")], "unbind:int split:Tensor unbind_copy:int split_copy:Tensor unsafe_split:Tensor"),
    ([rules.degrees], "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v"),
    ([rules.degrees], "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he"),
    ([rules.degrees], "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t"),
    (
        [rules.degrees],
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w",
    ),
]


def _table() -> dict[str, tuple[Rule, ...]]:
    table: dict[str, tuple[Rule, ...]] = {}
    for found, text in [((), _PLAIN), *_RULED]:
        for word in text.split():
            packet, _, overloads = word.partition(":")
            name = packet if "." in packet else f"aten.{packet}"
            for overload in (overloads or "default").split(","):
                assert f"{name}.{overload}" not in table, name
                table[f"{name}.{overload}"] = tuple(found)
    return table


OPERATORS: Final = _table()
"""The rules of each operator, by its full name."""
