# AOTInductor: the order of strides such as 48 and 48 * s is asked for with a guard, which refuses s = 1
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        parts = x.view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        out = torch.nn.functional.scaled_dot_product_attention(*parts)
        return out.transpose(1, 2).reshape(x.shape[0], x.shape[1], 16)


sizes = ({1: torch.export.Dim.DYNAMIC},)
exported = torch.export.export(Model(), (torch.rand(2, 6, 48),), dynamic_shapes=sizes)
compiled = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(exported))
print("expected", Model()(torch.ones(2, 1, 48)).shape)
print("seen", compiled(torch.ones(2, 1, 48)).shape)
