# AOTInductor: the result of a custom operator is read by the strides of its fake kernel, unchecked
#
# `torch.compile` raises here (`assert_size_stride`).
import torch


@torch.library.custom_op("example::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


transposed.register_fake(torch.empty_like)


class Model(torch.nn.Module):
    def forward(self, x):
        return transposed(x) + x


x = torch.arange(6.0).view(2, 3)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)))
print("expected", Model()(x))
print("seen", torch._inductor.aoti_load_package(package)(x))
