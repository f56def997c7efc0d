# AOTInductor: with `cpp.dynamic_threads`, code compiled on one thread is wrong on several
#
# `parallel_num_threads()` is 1, so `#pragma omp single` is left out for what stands beside the loops
# of a parallel region. Each thread then divides the sum, in place.
import torch
import torch._inductor.config


class Model(torch.nn.Module):
    def forward(self, x):
        total = x.sum()
        return x + total, total / 2


torch._inductor.config.cpp.dynamic_threads = True
torch.set_num_threads(1)
x = torch.ones(1 << 16)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)))
torch.set_num_threads(8)
compiled = torch._inductor.aoti_load_package(package)
print("expected", {32768.0})
print("seen", {compiled(x)[1].item() for _ in range(99)})
