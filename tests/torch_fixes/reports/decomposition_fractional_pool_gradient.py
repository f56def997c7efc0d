# AOTAutograd: the gradient of `fractional_max_pool3d` cannot be traced with dynamic sizes
import torch
from functorch.compile import aot_function, nop


def f(x, samples):
    return torch.nn.functional.fractional_max_pool3d(x, 2, output_size=(3, 3, 3), _random_samples=samples)


samples = torch.full((2, 2, 3), 0.3)
for name, call in (("expected", f), ("seen", aot_function(f, nop, nop, dynamic=True))):
    x = torch.rand(2, 2, 7, 7, 7, requires_grad=True)
    call(x, samples).sum().backward()
    print(name, x.grad.sum())
