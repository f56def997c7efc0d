# AOTInductor: `2 ** k` of integers is computed in float32
#
# The number is passed to the kernel as a double, and the type of the result follows from it.
import torch


class Model(torch.nn.Module):
    def forward(self, k):
        return 2**k


k = torch.tensor([3, 40, 62])
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (k,)))
print("expected", Model()(k))
print("seen", torch._inductor.aoti_load_package(package)(k))
