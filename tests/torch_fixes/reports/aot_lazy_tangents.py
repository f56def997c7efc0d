# AOTAutograd: no backward through a result that is lazily conjugated
#
# The tangent is traced with the conjugate bit of the result. At run time it has none, or the trace fails.
import torch


def f(x):
    return (x + 1j).conj()


for name, call in (("expected", f), ("seen", torch.compile(f, backend="aot_eager"))):
    x = torch.zeros(3, requires_grad=True)
    call(x).backward(torch.ones(3, dtype=torch.complex64))
    print(name, x.grad)
