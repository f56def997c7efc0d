# Export: nested compile regions that differ are taken for the first one
#
# Non-strict `torch.export` gives each nested compile region to a Dynamo of its own. Each names it
# `subgraph_0`, and the graph of a region is looked up by its name. torch 2.13 gives them other names.
import torch


@torch.compiler.nested_compile_region
def doubled(x):
    return x * 2


@torch.compiler.nested_compile_region
def squared(x):
    return x * x


class Model(torch.nn.Module):
    def forward(self, x):
        return doubled(x) + squared(x)


x = torch.tensor([1.0, 2.0, 3.0])
print("expected", Model()(x))
print("seen", torch.export.export(Model(), (x,), strict=False).module()(x))
