# `einsum` of three operands guards on all sizes, only to order its products
#
# opt_einsum compares sizes. Any order of the products is right at all sizes.
import torch
import torch._dynamo.testing

first, second, counter = torch.ones(3, 5), torch.ones(5, 2), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
compiled = torch.compile(lambda x: torch.einsum("bi,io,oc->bc", x, first, second), backend=counter, dynamic=True)
for batch in (4, 20):
    compiled(torch.rand(batch, 3, requires_grad=True))
print("expected", 1, "graph")
print("seen", counter.frame_count, "graphs")
