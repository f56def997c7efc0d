# AOTInductor: a number read off a float64 tensor is passed to kernels as `float`
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * x.sum().item()


x = torch.full((6,), 0.1, dtype=torch.float64)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)))
print("expected", Model()(x)[0].item())
print("seen", torch._inductor.aoti_load_package(package)(x)[0].item())
