# AOTInductor: a view of all of another result is returned as the same tensor object
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return y, y[:]


x = torch.rand(3)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)))
for name, call in (("expected", Model()), ("seen", torch._inductor.aoti_load_package(package))):
    one, other = call(x)
    print(name, one is other)
