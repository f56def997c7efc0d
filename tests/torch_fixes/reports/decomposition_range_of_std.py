# Decomposition of std: infinite where the variance is too large for float32
#
# Eager's kernel takes the root in float64. The decomposition takes the root of a variance that was rounded to float32.
import torch


def f(x):
    return x.std()


x = torch.arange(300.0).cos() * 1e20
print("expected", f(x))
print("seen", torch.compile(f, backend="aot_eager_decomp_partition")(x))
