# AOTInductor: a tensor filled with a complex number does not compile
#
# Gradients contain such tensors, for example that of `fft.rfft(x).abs()`.
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * torch.full((3,), 1 + 2j)


x = torch.ones(3)
print("expected", Model()(x))
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)))
print("seen", torch._inductor.aoti_load_package(package)(x))
