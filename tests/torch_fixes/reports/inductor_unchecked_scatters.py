# AOTInductor: errors of `scatter_reduce` and `index_put` kernels are ignored
#
# The generated C++ calls them without `AOTI_TORCH_ERROR_CODE_CHECK`, so the result is what they left.
import torch


class Model(torch.nn.Module):
    def forward(self, x, index):
        return x.scatter_reduce(0, index, x[:2] * 2, "mean").sum()


x = torch.rand(8)
exported = torch.export.export(Model(), (x, torch.tensor([0, 1])))
compiled = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(exported))
for name, call in (("expected", Model()), ("seen", compiled)):
    try:
        call(x, torch.tensor([0, 100]))
        print(name, "no error")
    except RuntimeError:
        print(name, "an error")
