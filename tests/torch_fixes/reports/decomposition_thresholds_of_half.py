# Decomposition of threshold_backward: no gradient at the rounded threshold in half precision
#
# Eager's kernel compares in float32. The decomposition rounds the threshold to half precision first.
import torch


def f(x):
    return torch.nn.functional.threshold(x, 0.3, 20.0)


for name, function in (("expected", f), ("seen", torch.compile(f, backend="aot_eager_decomp_partition"))):
    x = torch.tensor([0.3, 0.31], dtype=torch.bfloat16).requires_grad_()
    function(x).sum().backward()
    print(name, x.grad)
