# A convolution guards on its batch size only to choose a kernel, which is chosen again at run time
#
# `_select_conv_backend` asks whether the batch is larger than 16. The graph is the same either way.
import torch
import torch._dynamo.testing

weight, counter = torch.ones(2, 3, 3, 3), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
compiled = torch.compile(lambda x: torch.nn.functional.conv2d(x, weight), backend=counter, dynamic=True)
for batch in (4, 20):
    compiled(torch.rand(batch, 3, 6, 6, requires_grad=True))
print("expected", 1, "graph")
print("seen", counter.frame_count, "graphs")
