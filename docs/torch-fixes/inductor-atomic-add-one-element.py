# AOTInductor: `index_add` of a vector into a tensor of one element does not compile
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.new_zeros(1).index_add(0, torch.zeros(17, dtype=torch.long), x)


x = torch.ones(17)
print("expected", Model()(x))
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)))
print("seen", torch._inductor.aoti_load_package(package)(x))
