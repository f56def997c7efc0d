# AOTAutograd: the gradient of an overlapping `as_strided` fixes every dynamic size
#
# `as_strided_backward` in FunctionsManual.cpp reads the size of the storage as a plain integer.
import torch
import torch._dynamo.testing


def f(x):
    return x.as_strided((x.shape[0], 6, 3), (8, 1, 1)) * 2


counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
compiled = torch.compile(f, backend=counter, dynamic=True)
for size in (5, 7, 9):
    compiled(torch.rand(size, 8, requires_grad=True))
print("expected", 1, "graph")
print("seen", counter.frame_count, "graphs")
