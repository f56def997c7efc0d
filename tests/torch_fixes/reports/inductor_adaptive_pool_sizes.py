# AOTInductor: `adaptive_avg_pool2d` of dynamic sizes is compiled for the example's sizes
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(x, 2)


sizes = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
exported = torch.export.export(Model(), (torch.rand(1, 2, 7, 7),), dynamic_shapes=(sizes,))
package = torch._inductor.aoti_compile_and_package(exported)
x = torch.arange(216.0).view(1, 2, 9, 12)
print("expected", Model()(x))
print("seen", torch._inductor.aoti_load_package(package)(x))
