# Inductor: `glu` fixes the dynamic size that it halves
import torch
import torch._dynamo.testing

counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
compiled = torch.compile(lambda x: torch.nn.functional.glu(x, 0), backend=counter, dynamic=True)
for size in (6, 8):
    compiled(torch.rand(size, 3))
print("expected", 1, "graph")
print("seen", counter.frame_count, "graphs")
