# AOTInductor: `_foreach_mul` with a number for each tensor raises
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch._foreach_mul([x, y], [0.5, 3.0])


args = torch.ones(4), torch.ones(3)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), args))
print("expected", Model()(*args))
print("seen", torch._inductor.aoti_load_package(package)(*args))
