# Inductor: the gradient of a convolution fixes dynamic sizes
#
# The lowering calls `guard_int_seq` on strides, of which it needs the order only.
import torch
import torch._dynamo.testing

weight, counter = torch.ones(2, 3, 3, 3), torch._dynamo.testing.CompileCounterWithBackend("inductor")
compiled = torch.compile(lambda x: torch.nn.functional.conv2d(x, weight), backend=counter, dynamic=True)
for batch, size in ((4, 6), (5, 8)):
    compiled(torch.rand(batch, 3, size, 6, requires_grad=True)).sum().backward()
print("expected", 1, "graph")
print("seen", counter.frame_count, "graphs")
