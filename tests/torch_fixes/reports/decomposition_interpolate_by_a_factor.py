# Decomposition of interpolate: other values than eager's kernel if a factor leaves a size as it is
#
# The size stays 3, so eager copies. `_upsample_nearest` still computes indices by the factor.
import torch


def f(x):
    return torch.nn.functional.interpolate(x, scale_factor=1.3)


x = torch.arange(9.0).view(1, 1, 3, 3).requires_grad_()
print("expected", f(x).detach())
print("seen", torch.compile(f, backend="aot_eager_decomp_partition")(x).detach())
