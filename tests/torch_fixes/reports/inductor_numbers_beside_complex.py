# AOTInductor: `x.sum() * 3.5` of a complex64 tensor is complex128
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum() * 3.5


x = torch.ones(3, dtype=torch.complex64)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)))
print("expected", Model()(x).dtype)
print("seen", torch._inductor.aoti_load_package(package)(x).dtype)
