# Partitioner: two draws of random numbers are merged into one
#
# `fx_graph_cse` leaves out `rand_ops`. That list lacks most operators that draw, such as `exponential`.
import torch


def f(x):
    return x * (torch.empty_like(x).exponential_() - torch.empty_like(x).exponential_())


for name, call in (("expected", f), ("seen", torch.compile(f, backend="aot_eager_decomp_partition"))):
    torch.manual_seed(0)
    print(name, call(torch.ones(4, requires_grad=True)).detach())
