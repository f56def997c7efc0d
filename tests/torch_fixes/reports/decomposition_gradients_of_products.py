# The gradient of `prod` has another formula where it is traced
#
# `prod_backward` divides the product by each factor if none of them is 0, which it looks up. For tensor
# subclasses it multiplies the other factors instead. Products that overflow, and factors that are infinite
# or NaN, have other gradients then.
import torch

x = torch.tensor([1e30, 1e30, 1e-30, 1e-30], requires_grad=True)
for name, call in (("expected", torch.prod), ("seen", torch.compile(torch.prod, backend="aot_eager"))):
    (gradient,) = torch.autograd.grad(call(x), x)
    print(name, gradient)
