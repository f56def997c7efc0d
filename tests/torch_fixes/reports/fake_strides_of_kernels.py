# Fake kernels give other strides than kernels do, so `as_strided` of a result reads other elements
#
# 70 operators differ on the CPU: powers of a number, paddings of channels-last images, gradients of
# losses. The strides of the result decide what `as_strided` reads.
import torch


def f(x):
    return (2 ** x.t()).as_strided((5,), (2,))


x = torch.arange(20, dtype=torch.float64).view(4, 5).requires_grad_()
print("expected", f(x))
print("seen", torch.compile(f, backend="aot_eager")(x))
