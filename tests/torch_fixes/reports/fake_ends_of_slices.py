# Fake tensors: the size of `x[:2]` is unknown if the sliced dimension is dynamic
#
# With `backed_size_oblivious` it is not asked whether the dimension has two elements: it may have
# fewer. The size of the slice is then a new symbol that depends on data, and operators that ask
# for it fail. It is `Min(2, size)`.
import torch

torch.fx.experimental._config.backed_size_oblivious = True


class Model(torch.nn.Module):
    def forward(self, x):
        return x[:2].roll(1, 0)


x = torch.arange(4.0).view(4, 1)
print("expected", Model()(x))
exported = torch.export.export(Model(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
print("seen", exported.module()(x))
