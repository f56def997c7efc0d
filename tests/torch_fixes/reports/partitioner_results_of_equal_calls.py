# Partitioner: results of two equal calls are one tensor
#
# `fx_graph_cse` keeps calls apart that share memory with what is returned. It does not look at calls with
# several results (`sort`, `topk`, `max`). A caller that writes to one result changes the other.
import torch


def f(x):
    return x.sort().values, x.sort().values


x = torch.ones(3, requires_grad=True)
for name, call in (("expected", f), ("seen", torch.compile(f, backend="aot_eager_decomp_partition"))):
    one, other = call(x)
    print(name, one.data_ptr() == other.data_ptr())
