# AOTInductor: the difference of complex tensors raises
#
# The code passes the default `alpha=1` to the kernel, and the record of its arguments lacks it.
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return x.conj() - y


args = torch.ones(3, dtype=torch.complex128), torch.ones(3, dtype=torch.complex128)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), args))
print("expected", Model()(*args))
print("seen", torch._inductor.aoti_load_package(package)(*args))
