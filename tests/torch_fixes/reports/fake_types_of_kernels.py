# Fake kernels of norms and losses with two element types return other types than the real kernels
#
# With an input of half precision and a weight of `float32`, statistics of `native_layer_norm`,
# `native_group_norm` and `native_batch_norm` are `float32`. The fake kernels return the input's type.
# `soft_margin_loss` and `huber_loss` have the input's type; the fake kernels return the wider one.
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def types(convert):
    x, y = convert(torch.rand(2, 3).bfloat16()), convert(torch.rand(2, 3))
    mean = torch.native_layer_norm(x, (3,), y[0], None, 1e-5)[1]
    return mean.dtype, torch.nn.functional.soft_margin_loss(x, y).dtype


print("expected", types(lambda tensor: tensor))
print("seen", types(FakeTensorMode().from_tensor))
