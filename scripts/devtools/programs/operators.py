"""The operators of random programs, as source text with slots that are filled at random.

Slots:

- ``a``: a tensor of real numbers; ``b``: another of the same shape if possible; ``c``: any tensor;
- ``k``: integers or booleans; ``w``: complex numbers; ``v``: a part of ``a``;
- ``d``, ``e``: dimensions of ``a``; ``n``: the size of ``d``; ``z``: the size of the last
  dimension;
- ``i``: indices along ``d``, in one dimension; ``j``: indices along ``d``, with the shape of ``a``.
"""

from __future__ import annotations

VIEWS = """
a.transpose({d}, {e})
a.flatten()
a.reshape(-1, {n})
a.unsqueeze({d})
a.unsqueeze(0).expand(3, *{a}.shape)
a.narrow({d}, 0, 1)
a.narrow({d}, 1, {n} - 1)
a.select({d}, -1)
a[..., ::2]
a[1:]
a.unfold({d}, 2, 1)
a.unfold({d}, 3, 2)
a.diagonal()
a.movedim({d}, {e})
a.split(2, {d})[-1]
a.chunk(2, {d})[0]
a.detach()
a.squeeze()
a.view({a}.shape)
a.narrow({d}, 0, 0)
a.t()
a.as_strided((2, 3), (1, 2), 1)
"""

WRITTEN = """
a
a[1:]
a[-1]
a[..., ::2]
a[..., 1:3]
a[..., :1]
a.select({d}, 0)
a.select({d}, -1)
a.narrow({d}, 0, 1)
a.narrow({d}, 1, {n} - 1)
a.transpose({d}, {e})
a.transpose({d}, {e})[1:]
a.transpose({d}, {e})[..., ::2]
a.diagonal()
a.view(-1)[1:4]
a.view(-1)[::3]
a.unfold({d}, 2, 2)
a.unfold({d}, 1, 2)
a.unsqueeze(0)
a.split(2, {d})[-1]
a.movedim({d}, 0)[0]
a.select({d}, 0)[1:]
a.squeeze()
a.narrow({d}, 0, 0)
"""

ELEMENTWISE = """
a.sin()
a.sigmoid()
a.abs()
a.relu()
a.square()
a.tanh()
a.clone()
a * 2
a + {b}
a * {b}
a - {b}.flip({d})
a / ({b}.abs() + 1)
a * {c}.mean()
a.exp().clamp(max=3)
a.clamp(-0.5, 0.7)
a.clamp({b}, None)
torch.maximum({a}, {b})
torch.minimum({a}, {b})
torch.where({a} > 0, {a}, {b})
torch.where({a} > {b}, {a}, {b} * 2)
torch.where({a} > 0, 0.5, {a})
torch.addcmul({a}, {b}, {b}, value=0.5)
torch.lerp({a}, {b}, 0.3)
torch.atan2({a}, {b}.abs() + 1)
torch.hypot({a}, {b})
torch.copysign({a}, {b})
torch.fmod({a}, 0.7)
torch.remainder({a}, 0.7)
torch.floor_divide({a}.detach(), 0.7)
a.frac()
a.round()
a.trunc()
a.sign()
a.erf()
a.logit(0.01)
a.sinc()
a.log1p().nan_to_num(0.5)
a.abs().pow(1.5)
a.pow(3)
torch.xlogy({a}, {b}.abs() + 1)
torch.logaddexp({a}, {b})
a.masked_fill({a} > {a}.mean(), 0.5)
a.masked_fill({b} < 0, 0)
a.expm1().clamp(max=2)
a.abs().add(0.5).rsqrt()
a.abs().add(0.5).log()
a.abs().add(1).lgamma()
torch.nextafter({a}, {b}).detach()
F.gelu({a})
F.gelu({a}, approximate="tanh")
F.silu({a})
F.softplus({a})
F.mish({a})
F.hardswish({a})
F.hardtanh({a}, -0.4, 0.6)
F.elu({a})
F.celu({a}, 0.7)
F.selu({a})
F.leaky_relu({a}, 0.1)
F.logsigmoid({a})
F.softshrink({a})
F.hardshrink({a})
F.threshold({a}, 0.1, 0.3)
F.glu({a}, {d})
F.prelu({a}, {c}.flatten()[:1])
a.float().to({a}.dtype)
a.double().to({a}.dtype)
a.bfloat16().to({a}.dtype)
a.to(torch.int32).to({a}.dtype)
"""

REDUCTIONS = """
a.sum({d})
a.sum({d}, keepdim=True)
a.sum(({d}, {e}))
a.mean({d}, keepdim=True)
a.mean()
a - {a}.mean({d}, keepdim=True)
a.var({d})
a.var({d}, correction=0, keepdim=True)
a.std(({d}, {e}), keepdim=True)
torch.var_mean({a}, {d})[0]
torch.var_mean({a}, {d}, keepdim=True)[1]
a / ({a}.var({d}, keepdim=True) + 1)
a.amax({d})
a.amin({d}, keepdim=True)
a.amax(({d}, {e}))
a.max({d}).values
a.min({d}, keepdim=True).values
a.max()
a.min()
a.prod({d})
a.norm()
a.norm(dim={d})
torch.linalg.vector_norm({a}, 3, {d})
torch.linalg.vector_norm({a}, float("inf"), {d})
torch.linalg.vector_norm({a}, 1, {d}, keepdim=True)
a.logsumexp({d})
a.logsumexp(({d}, {e}))
a.softmax({d})
a.softmax({d}).cumsum({d})
a.log_softmax({d})
a.cumsum({d}) / {n}
a.flip({d}).cumsum({d}).flip({d}) / {n}
a.cos().cumprod({d})
a.cummax({d}).values
a.cummin({d}).values
a.logcumsumexp({d})
a.nansum({d})
a.median({d}).values
a.kthvalue(1, {d}).values
a.sort(dim={d}, stable=True).values
a.sort(dim={d}, descending=True, stable=True).values
a.topk(2, {d}).values
a.topk(1, {d}, largest=False).values
a.quantile(0.3, {d})
a.diff(dim={d})
a.renorm(2, {d}, 1.5)
torch.trapezoid({a}, dim={d})
F.normalize({a}, dim={d})
F.mse_loss({a}, {b})
F.smooth_l1_loss({a}, {b}, reduction="none")
F.huber_loss({a}, {b}, delta=0.3)
F.kl_div({a}.log_softmax({d}), {b}.softmax({d}), reduction="batchmean")
F.binary_cross_entropy_with_logits({a}, {b}.sigmoid())
F.cosine_similarity({a}, {b}, {d})
F.pairwise_distance({a}, {b})
F.cross_entropy({a}.reshape(-1, {z}), torch.arange({a}.numel() // {z}) % {z})
F.nll_loss({a}.reshape(-1, {z}).log_softmax(-1), torch.arange({a}.numel() // {z}) % {z}, reduction="none")
F.multi_margin_loss({a}.reshape(-1, {z}), torch.arange({a}.numel() // {z}) % {z})
"""

PLACES = """
a.index_select({d}, {i})
a.gather({d}, {j})
torch.take_along_dim({a}, {j}, {d})
a[{i}]
a[..., {i}]
a[:, {i}]
a[..., {i}, :]
a[{i}, ..., {i}]
a.flip({d})
a.roll(1, {d})
a.roll((1, 2), ({d}, {e}))
a.rot90(1, ({d}, {e}))
a.index_add({d}, {i}, {a}.index_select({d}, {i}))
a.index_copy({d}, torch.arange({n} - 1, -1, -2), {a}.index_select({d}, torch.arange({n} - 1, -1, -2)) * 2)
a.index_fill({d}, {i}, 0.3)
torch.zeros_like({a}).index_add({d}, {i}, {a}.index_select({d}, {i}))
torch.zeros({n}, {z}, dtype={a}.dtype).index_add(0, {i}, {a}.index_select({d}, {i}).reshape(-1, {z})[: len({i})])
a.scatter({d}, {j}, 0.3)
a.scatter_add({d}, {j}, {b} / {n})
torch.zeros_like({a}).scatter_add({d}, {j}, {a} / {n})
a.scatter_reduce({d}, {j}, {b}, "amax")
a.scatter_reduce({d}, {j}, {b}, "mean", include_self=False)
a.scatter_reduce({d}, {j}, {b} / {n}, "sum")
a.scatter_reduce({d}, {j}, {b}.cos(), "prod")
a.index_reduce({d}, {i}, {a}.index_select({d}, {i}) * 2, "amax")
a.index_reduce({d}, {i}, {a}.index_select({d}, {i}) * 2, "mean")
a.clone().index_put_(({i},), {b}[0].sin(), accumulate=True)
a.clone().index_put_(({i},), {b}[0] * 2)
a.clone().index_put_(({i}, torch.arange(len({i})) % 2), {c}.mean(), accumulate=True)
a.index_put(({a} > 0,), {c}.mean())
a.masked_scatter({a} > 0, {b})
a.select_scatter({b}.select({d}, 0), {d}, -1)
a.slice_scatter({b}.narrow({d}, 0, 1), {d}, 1, 2)
a.diagonal_scatter({b}.diagonal() * 2)
a.as_strided_scatter({b}.reshape(-1)[:2], (2,), (1,), 1)
a.tril()
a.triu(1)
torch.diag_embed({a})
a.repeat(2, *[1] * ({a}.dim() - 1))
a.repeat_interleave(2, {d})
torch.tile({a}, (2,))
torch.cat([{a}, {b}], {d})
torch.cat([{a}, {b} * 2, {a}.flip({d})], {d})
torch.cat([{a}.narrow({d}, 1, {n} - 1), {a}.narrow({d}, 0, 1)], {d})
torch.stack([{a}, {b}], {d})
F.pad({a}, (1, 2))
F.pad({a}, (-1, 1))
F.pad({a}, (1, 0, 2, 1), value=0.3)
F.pad({a}.reshape(1, -1, {z}), (2, 1), mode="reflect")
F.pad({a}.reshape(1, -1, {z}), (1, 2), mode="replicate")
F.pad({a}.reshape(1, -1, {z}), (2, 1), mode="circular")
F.pad({a}.reshape(1, 1, -1, {z}), (1, 1, 2, 1), mode="reflect")
F.pad({a}.reshape(1, 1, -1, {z}), (1, 1, 2, 1), mode="replicate")
a.contiguous()
a.transpose({d}, {e}).contiguous()
a.transpose({d}, {e}).reshape({a}.shape)
a.transpose({d}, {e}) * 2
F.embedding({i}, {a}.reshape(-1, {z})[:{n}])
F.embedding_bag({i}.reshape(1, -1), {a}.reshape(-1, {z})[:{n}], mode="mean")
F.embedding_bag({i}.reshape(1, -1), {a}.reshape(-1, {z})[:{n}], mode="max")
F.one_hot({i}, {n}).to({a}.dtype) @ {a}.reshape(-1, {z})[:{n}]
torch.bucketize({a}, {c}.flatten().detach().sort().values).to({a}.dtype)
torch.searchsorted({c}.flatten().detach().sort().values, {a}.contiguous()).to({a}.dtype)
"""

LINEAR = """
a.reshape(-1, {z}) @ {c}.reshape(-1, {z}).t() / {z}
a @ {b}.transpose(-1, -2) / {z}
torch.bmm({a}.reshape(2, -1, {z}), {b}.reshape(2, -1, {z}).transpose(1, 2)) / {z}
torch.einsum("ij,kj->ik", {a}.reshape(-1, {z}), {c}.reshape(-1, {z})) / {z}
torch.einsum("ij,kj->jik", {a}.reshape(-1, {z}), {c}.reshape(-1, {z})[:3])
torch.einsum("ij,ij->j", {a}.reshape(-1, {z}), {b}.reshape(-1, {z}))
torch.einsum("ii->i", {a}.flatten()[:16].reshape(4, 4))
torch.outer({a}.flatten()[:5], {c}.flatten()[:7])
torch.mv({a}.reshape(-1, {z}), {c}.flatten()[:{z}]) / {z}
torch.addmm({c}.flatten()[:1], {a}.reshape(-1, {z}), {b}.reshape(-1, {z}).t(), alpha=0.1)
F.linear({a}, {c}.reshape(-1, {z})[:3]) / {z}
F.linear({a}, {c}.reshape(-1, {z})[:2], {c}.flatten()[:2]) / {z}
torch.cdist({a}.reshape(-1, {z}), {c}.reshape(-1, {z})[:3] + 1)
torch.kron({a}.flatten()[:6].reshape(2, 3), {c}.flatten()[:4].reshape(2, 2))
torch.linalg.cross({a}.reshape(-1, 3), {b}.reshape(-1, 3))
torch.tensordot({a}.reshape(-1, {z}), {b}.reshape(-1, {z}), ([0], [0])) / {z}
F.scaled_dot_product_attention({a}.reshape(1, 2, -1, {z}), {b}.reshape(1, 2, -1, {z}), {b}.reshape(1, 2, -1, {z}))
F.scaled_dot_product_attention({a}.reshape(1, 2, -1, {z}), {b}.reshape(1, 2, -1, {z}), {a}.reshape(1, 2, -1, {z}), is_causal=True)
"""

LAYERS = """
F.layer_norm({a}, {a}.shape[-1:])
F.layer_norm({a}, {a}.shape[-1:], {c}.flatten()[:{z}], {c}.flatten()[-{z}:])
F.layer_norm({a}, {a}.shape)
F.group_norm({a}.reshape(2, 2, -1), 2)
F.group_norm({a}.reshape(1, 4, -1), 2, {c}.flatten()[:4], {c}.flatten()[4:8])
F.batch_norm({a}.reshape(-1, {z}), None, None, training=True)
F.batch_norm({a}.reshape(-1, 2, {z}), None, None, {c}.flatten()[:2], {c}.flatten()[2:4], training=True)
F.batch_norm({a}.reshape(-1, {z}), {c}.flatten()[:{z}].detach(), {c}.flatten()[:{z}].detach().abs() + 0.5)
F.instance_norm({a}.reshape(2, 2, -1))
F.rms_norm({a}, {a}.shape[-1:])
F.local_response_norm({a}.reshape(1, -1, {z}), 3)
F.avg_pool1d({a}.reshape(1, -1, {z}), 3, 2, 1, ceil_mode=True)
F.avg_pool2d({a}.reshape(1, 1, -1, {z}), 2)
F.avg_pool2d({a}.reshape(1, 1, -1, {z}), (3, 2), 1, (1, 0), count_include_pad=False)
F.avg_pool2d({a}.reshape(1, 2, -1, {z}), 3, 2, 1, True, True, 5)
F.avg_pool3d({a}.reshape(1, 1, 2, -1, {z}), 2, 1)
F.max_pool1d({a}.reshape(1, -1, {z}), 3, 2, 1)
F.max_pool2d({a}.reshape(1, 1, -1, {z}), 2, 2, ceil_mode=True)
F.max_pool2d({a}.reshape(1, 1, -1, {z}), 3, 1, 1)
F.max_pool2d({a}.reshape(1, 1, -1, {z}), 2, 1, 0, 2)
F.max_pool2d({a}.reshape(1, 2, -1, {z}).to(memory_format=torch.channels_last), 3, 2, 1)
F.max_pool3d({a}.reshape(1, 1, 2, -1, {z}), 2, 1)
F.adaptive_avg_pool1d({a}.reshape(1, -1, {z}), 3)
F.adaptive_avg_pool2d({a}.reshape(1, 1, -1, {z}), (2, 3))
F.adaptive_avg_pool2d({a}.reshape(1, 1, -1, {z}), 5)
F.adaptive_max_pool1d({a}.reshape(1, -1, {z}), 3)
F.adaptive_max_pool2d({a}.reshape(1, 1, -1, {z}), (2, 3))
F.lp_pool1d({a}.reshape(1, -1, {z}).abs() + 0.1, 2, 2)
F.max_unpool1d(*F.max_pool1d({a}.reshape(1, -1, {z}), 2, return_indices=True), 2)
F.interpolate({a}.reshape(1, 1, -1, {z}), scale_factor=2.0)
F.interpolate({a}.reshape(1, 1, -1, {z}), size=(3, 5), mode="nearest-exact")
F.interpolate({a}.reshape(1, 1, -1, {z}), size=(5, 7), mode="bilinear")
F.interpolate({a}.reshape(1, 1, -1, {z}), scale_factor=1.7, mode="bilinear", align_corners=True)
F.interpolate({a}.reshape(1, 1, -1, {z}), size=(4, 9), mode="bicubic")
F.interpolate({a}.reshape(1, 1, -1, {z}), size=(4, 9), mode="area")
F.interpolate({a}.reshape(1, -1, {z}), scale_factor=1.5, mode="linear")
F.interpolate({a}.reshape(1, 1, 2, -1, {z}), size=(3, 4, 5), mode="trilinear")
F.grid_sample({a}.reshape(1, 1, -1, {z}), {c}.flatten()[:24].reshape(1, 3, 4, 2).tanh(), align_corners=False)
F.grid_sample({a}.reshape(1, 1, -1, {z}), {c}.flatten()[:24].reshape(1, 3, 4, 2), padding_mode="border", align_corners=True)
F.grid_sample({a}.reshape(1, 1, -1, {z}), {c}.flatten()[:24].reshape(1, 3, 4, 2), padding_mode="reflection", align_corners=False)
F.pixel_shuffle({a}.reshape(1, 4, -1, {z}), 2)
F.pixel_unshuffle({a}.reshape(1, 1, -1, {z}), 2)
F.channel_shuffle({a}.reshape(1, 4, -1, {z}), 2)
F.unfold({a}.reshape(1, 1, -1, {z}), 2)
F.fold({a}.flatten()[:32].reshape(1, 8, 4), (3, 3), 2)
F.conv1d({a}.reshape(1, -1, {z})[:, :2], {c}.flatten()[:18].reshape(3, 2, 3), padding=1)
F.conv1d({a}.reshape(1, -1, {z})[:, :4], {c}.flatten()[:12].reshape(4, 1, 3), stride=2, groups=4)
F.conv2d({a}.reshape(1, 2, -1, {z}), {c}.flatten()[:36].reshape(2, 2, 3, 3), {c}.flatten()[:2], padding=1)
F.conv2d({a}.reshape(1, 2, -1, {z}), {c}.flatten()[:8].reshape(4, 2, 1, 1))
F.conv2d({a}.reshape(2, 1, -1, {z}).to(memory_format=torch.channels_last), {c}.flatten()[:18].reshape(2, 1, 3, 3), dilation=2)
F.conv_transpose1d({a}.reshape(1, -1, {z})[:, :2], {c}.flatten()[:18].reshape(2, 3, 3), stride=2)
F.conv_transpose2d({a}.reshape(1, 1, -1, {z}), {c}.flatten()[:8].reshape(1, 2, 2, 2), stride=2)
F.bilinear({a}.reshape(-1, {z}), {b}.reshape(-1, {z}), {c}.flatten()[: 2 * {z} * {z}].reshape(2, {z}, {z})) / {z}
torch.fft.rfft({a}).real
torch.fft.fft({a}, dim={d}).imag
torch.fft.irfft(torch.fft.rfft({a}) * 2, n={z})
torch.view_as_real(torch.complex({a}, {b}) * torch.complex({b}, {a}))
torch.complex({a}, {b}).abs()
"""

WHOLE = """
a > {b}
a >= 0
a == {b}
a.isfinite()
a.argmax({d})
a.argmin({d}, keepdim=True)
a.argsort(dim={d}, stable=True)
a.sort(dim={d}, stable=True).indices
a.max({d}).indices
a.cummax({d}).indices
a.topk(2, {d}).indices
(a * 3).long()
(a * 100).to(torch.int8)
(a * 100).clamp(0, 255).to(torch.uint8)
(a * 3).to(torch.int32)
a.count_nonzero({d})
({a} > 0).any({d})
({a} > {b}).all({d}, keepdim=True)
({a} > 0).sum({d})
({a} > 0).cumsum(-1)
k + 1
k * {k}
k // 2
k % 3
-({k} * 2 - 3)
(k - 5) // 3
(k - 5) % 3
(k * 5) & 6
(k * 1) << 2
~{k}
k.sum()
k.sum(-1)
k.to(torch.int16).sum(-1)
k.prod(-1)
k.amax(-1)
(k * 1).cumsum(-1)
k.bool().logical_not()
k.sort(dim=-1, stable=True).values
k.flip(-1)
k.double().mean(-1, keepdim=True)
k.bitwise_xor(3)
torch.where({k} > 1, {k}, 2)
torch.div({k} * 7 - 4, 3, rounding_mode="trunc")
torch.bincount({k}.flatten().clamp(0, 5).long(), minlength=6)
a * {k}.to({a}.dtype).mean().clamp(-2, 2)
torch.where({k} > 1, {a}, {b})
torch.where({k} != 0, {a}, 0)
a.masked_fill({k} != 0, 0.2)
torch.where({k} > 1, {k}, 0.5)
torch.where({k} > 0, {k}.to(torch.int8), {k})
torch.cat([{k}, {k}.bool()])
torch.cat([{k}.flatten(), {a}.flatten()[:3]])
torch.stack([{k} * 2, {k}], -1)
F.pad({k}, (1, 2), value=3)
k.t()
k[1:]
k[..., ::2]
k.unsqueeze(0)
k.gather(-1, torch.zeros_like({k}, dtype=torch.int64))
k.scatter(-1, torch.zeros_like({k}, dtype=torch.int64), 2)
k.index_add(0, torch.tensor([0, 0]), {k}.narrow(0, 0, 2))
k.index_fill(-1, torch.tensor([0]), 1)
k.masked_fill({k} > 1, 3)
k.roll(1, -1)
k.cumprod(-1).clamp(-9, 9)
k.amin(-1)
k.amax()
k.argmax(-1)
k.argmin()
k.max(-1).values
k.aminmax().min
k.float().var(-1)
k.any(-1)
k.all()
k.bool().cumsum(-1)
k.bool() ^ ({k} > 1)
({k} > 0) & ({k} < 3)
({k} > 0) | ({k} == 0)
({k} > 1).to(torch.uint8) * 200 + 100
({k} > 1).float() - 0.5
k.to(torch.int8) * 50
k.to(torch.uint8) - 3
k.to(torch.uint8) * 100
k.to(torch.uint8) // 3
k.to(torch.uint8) % 3
~{k}.to(torch.uint8)
-{k}.to(torch.uint8)
k.to(torch.int8).sum(-1)
k.to(torch.int8).prod(-1)
k.to(torch.uint8).cumsum(-1)
k.to(torch.int8).sort(-1, stable=True).values
k.to(torch.int16) * 9000
k.to(torch.int8) + {k}.to(torch.int32)
k.to(torch.uint8) > {k}.to(torch.int8)
(k * 1) >> 1
(k - 3) >> 1
(k - 3).abs()
(k - 3).sign()
(k - 3).clamp(min=0)
(k - 3).to(torch.int32) // 2
(k - 3).remainder(-4)
(k - 3).fmod(-4)
(k - 3).pow(2)
torch.pow(2, {k}.clamp(0, 5))
torch.gcd({k} * 6, {k} + 2)
torch.maximum({k}, {k}.flip(-1))
torch.bitwise_left_shift({k}.clamp(0, 3), 2)
torch.isin({k}, torch.tensor([1, 3]))
torch.div({k} * 7 - 4, -3, rounding_mode="floor")
torch.div({k} * 7 - 4, {a}.abs().amax() + 1, rounding_mode="trunc")
torch.floor_divide({k} * 7 - 4, 1.5)
k / 3
k * 0.5
k + 2.5
k.sqrt()
k.to({a}.dtype).sin()
k.bool().to({a}.dtype) * {a}.mean()
k.to(torch.float16)
k.to(torch.bfloat16).to(torch.float32)
a.to(torch.float16).to(torch.int32)
a.amax({d}) > {a}.amin({d})
a.signbit()
a.isclose({b}.flip({d}))
"""

HALF = """
a.detach().bfloat16().amax({d}).to({a}.dtype)
a.detach().half().amin().to({a}.dtype)
a.bfloat16().max({d}).values.float()
a.bfloat16().sort({d}, stable=True).values.to({a}.dtype)
a.bfloat16().sort({d}, stable=True).indices
a.half().argmax({d})
a.half().flip({d}).float()
a.bfloat16().t().contiguous().float()
a.half().abs().neg().to({a}.dtype)
a.bfloat16().relu().to({a}.dtype)
a.bfloat16().clamp(-0.3, 0.5).to({a}.dtype)
a.half().masked_fill({b} > 0, 0.3).to({a}.dtype)
torch.where({a} > 0.1, {a}.bfloat16(), {b}.bfloat16()).to({a}.dtype)
torch.where({a} > 0.1, {a}.half(), 0.3).to({a}.dtype)
torch.cat([{a}.half(), {b}.half()], {d}).to({a}.dtype)
torch.cat([{a}.half(), {b}], {d}).to({a}.dtype)
torch.maximum({a}.half(), {b}.half()).to({a}.dtype)
a.detach().bfloat16().gather({d}, {j}).to({a}.dtype)
a.detach().half().index_select({d}, {i}).to({a}.dtype)
a.bfloat16().scatter({d}, {j}, 0.3).to({a}.dtype)
a.half().index_fill({d}, {i}, 0.3).to({a}.dtype)
a.bfloat16().index_put(({a} > 0.1,), torch.tensor(0.3, dtype=torch.bfloat16)).to({a}.dtype)
a.half().roll(1, {d}).to({a}.dtype)
a.bfloat16().tril().float()
a.detach().half().cummax({d}).values.to({a}.dtype)
a.bfloat16().topk(1, {d}).values.to({a}.dtype)
a.detach().half().unfold({d}, 2, 1).to({a}.dtype)
a.detach().bfloat16().repeat_interleave(2, {d}).to({a}.dtype)
(a.half() > {b}.half()).sum({d})
(a.bfloat16() == {a}).sum()
F.pad({a}.half(), (1, 2), value=0.3).to({a}.dtype)
F.max_pool2d({a}.detach().reshape(1, 1, -1, {z}).half(), 2, 1).to({a}.dtype)
F.relu6({a}.bfloat16() * 8).to({a}.dtype)
F.pixel_unshuffle({a}.reshape(1, 1, -1, {z}).half(), 2).to({a}.dtype)
a.bfloat16().to(torch.int32)
a.half().round().to({a}.dtype)
a.bfloat16().sign().to({a}.dtype)
a.half() * 2
a.bfloat16() + 0
"""
"""On numbers of half precision, where nothing is rounded that eager does not round; gradients are not added there."""

COMPLEX = """
torch.complex({a}, {b})
torch.complex({a}, {b}).t()
torch.complex({a}, {b}.flip({d}))
torch.polar({a}.abs() + 0.5, {b})
a.to(torch.complex128)
a + 1j
a * torch.complex({b}, {a})
a.reshape(-1, 2)[:, 0] * 1j
torch.view_as_complex({a}.reshape(-1, 2).clone())
w.real
w.imag
w.conj()
w.conj() * {w}
w * {w}
w * 2j
w + {w}.flip(0)
w - {w}.conj()
w / (1 + 2j)
w.abs()
w.angle() * ({w}.abs() > 0.1)
w.exp().real.clamp(-2, 2)
w.sin().imag.clamp(-2, 2)
w.sum()
w.sum(0)
w.mean(-1)
w.cumsum(0).real
w.prod(-1).abs().clamp(max=3)
w[1:]
w[..., ::2]
w.flip(0)
w.roll(1, 0)
w.unsqueeze(0).expand(2, *{w}.shape)
w.flatten()[:5]
w.reshape(-1)
w.clone()
w.transpose(0, -1)
w.resolve_conj()
w.conj().imag
w.index_select(0, torch.tensor([0, 0]))
w.masked_fill({w}.real > 0, 1j)
w.index_fill(0, torch.tensor([0]), 2)
w.diagonal()
w.tril()
w == {w}.conj()
w.norm()
w.var(0)
w.view(-1).outer({w}.view(-1))[:3, :3]
torch.where({w}.abs() > 0.5, {w}, 0)
torch.cat([{w}, {w}.conj()])
torch.stack([{w}, {w} * 1j], -1)
torch.view_as_real({w})
torch.view_as_real({w}).sum(-1)
torch.fft.fft({w}).abs()
F.pad({w}, (1, 2))
"""

WRITES = """
a.mul_(2)
a.add_(1)
a.add_({c}.sum().tanh())
a.mul_({b})
a.copy_({b})
a[..., 0] = 0.5
a[..., 1:] = {b}[..., 1:] * 2
a[0] += {b}[-1]
a.narrow({d}, 0, 1).mul_(3)
a.transpose({d}, {e}).add_({c}.mean())
a.select({d}, 0).copy_({b}.select({d}, -1))
a.index_add_({d}, {i}, {b}.index_select({d}, {i}))
a.index_copy_({d}, torch.arange({n} - 1, -1, -2), {b}.index_select({d}, torch.arange({n} - 1, -1, -2)))
a.index_fill_({d}, {i}, 0.4)
a.scatter_({d}, {j}, 0.6)
a.scatter_add_({d}, {j}, {b} / {n})
a.masked_fill_({b} > 0, 0.1)
a[{i}] = {b}[0]
a[..., {i}] += 1
a.index_put_(({i},), {b}[0], accumulate=True)
a.clamp_(-1, 1)
a.sigmoid_()
a.fill_(0.3)
a.diagonal().mul_(2)
a.detach().mul_(1.5)
a.data.add_(0.5)
v.mul_(2)
v.add_({c}.sum().tanh())
v.fill_(0.5)
v.zero_()
v.copy_({v}.flip(0))
v.copy_({v}.cumsum(-1) / {n})
v.copy_({v} * 2)
v.copy_({c}.mean())
v.masked_fill_({v} > 0.1, 0.7)
v.masked_fill_({v} < {c}.mean(), 0.4)
v.add_({v}.mean())
v.clamp_(min=0.1)
v.sub_({c}.amax())
v.mul_({v})
v.sigmoid_()
v.copy_(torch.where({v} > 0.1, {v}, {c}.mean()))
v.div_({c}.abs().max() + 1)
v.pow_(2)
v.neg_()
v.round_(decimals=1)
v.index_fill_(0, torch.tensor([0]), 0.25)
v.lerp_({v}.flip(0), 0.3)
v.addcmul_({v}, {v}, value=0.1)
v[{v} > 0.2] = {c}.mean()
v[{v} < -0.2] = 0.25
v[torch.tensor([0, 0])] += 1
v[:1] = {v}[-1:]
a[{a} > 0.1] = {c}.mean()
a[{b} > {a}.mean()] = 0.25
a[torch.tensor([0, -1])] = {b}[torch.tensor([-1, 0])]
a.index_put_((torch.tensor([0, 1]), torch.tensor([1, 0])), {c}.sum().tanh(), accumulate=True)
a.scatter_reduce_({d}, {j}, {b} * 2, "amax")
a.masked_scatter_({a} > 0.3, {b} * 2)
a.put_(torch.tensor([1, 3]), {b}.flatten()[:2] * 2)
a.tril_()
a.lerp_({b}, 0.3)
a.copy_({b}.flip({d}))
a.copy_({b}.cumsum({d}) / {n})
a.select({d}, 0).expand_as({a}).clone().mul_(2)
torch.add({a}, {b}, out={b})
torch.mul({a}, 0.5, out={b})
torch.cumsum({a}, {d}, out={b})
torch.where({a} > 0.1, {a}, 0.5, out={b})
k.add_(1)
k.mul_(2)
k[..., 0] = 1
k[1:].copy_({k}[1:].flip(0))
k.masked_fill_({k} > 1, 0)
k[{k} > 1] = 2
k.clamp_(max=2)
k.copy_({k}.cumsum(-1))
w.mul_(2)
w.real.add_(1)
w.imag.mul_(2)
w[0] = 1j
w.conj().add_(1j)
w.copy_({w}.flip(0))
"""

RANDOM = """
F.dropout({a}, 0.4)
F.dropout1d({a}.reshape(1, -1, {z}), 0.4)
a * torch.rand_like({a})
a + torch.randn({a}.shape, dtype={a}.dtype)
torch.bernoulli({a}.sigmoid())
a * torch.randint(0, 3, {a}.shape)
F.rrelu({a}, training=True)
"""


def templates(text: str) -> list[str]:
    """One template for each line. At the start of a line the first slot is written without braces."""
    return [_braced(line) for line in text.strip().splitlines()]


def _braced(line: str) -> str:
    """``a.sin()`` as ``{a}.sin()``, ``(a * 3).long()`` as ``({a} * 3).long()``."""
    opening = "(" if line.startswith("(") else ""
    rest = line.removeprefix(opening)
    name, after = rest[:1], rest[1:2]
    return f"{opening}{{{name}}}{rest[1:]}" if name in "akvw" and after in ". [*+-/>=&<%" else line


KINDS = {
    "view": (templates(VIEWS), 4),
    "elementwise": (templates(ELEMENTWISE), 5),
    "reduction": (templates(REDUCTIONS), 5),
    "places": (templates(PLACES), 6),
    "linear": (templates(LINEAR), 1),
    "layer": (templates(LAYERS), 4),
    "whole": (templates(WHOLE), 3),
    "half": (templates(HALF), 1),
    "complex": (templates(COMPLEX), 1),
    "write": (templates(WRITES), 4),
}
"""Operators by kind, and how often a kind is drawn."""

PARTS = templates(WRITTEN)
"""What ``v`` is."""

DRAWS = templates(RANDOM)
