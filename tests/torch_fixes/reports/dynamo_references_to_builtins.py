# Dynamo's capture for export: a result that is a subclass of OrderedDict is rejected
#
# The code that Dynamo writes for the result refers to `type`. The check of references looks for it
# among the globals alone.
from collections import OrderedDict

import torch
from torch._dynamo.functional_export import dynamo_graph_capture_for_export


class Output(OrderedDict):
    pass


def f(x):
    return Output(y=x * 2)


print("expected", f(torch.ones(3))["y"])
print("seen", dynamo_graph_capture_for_export(f)(torch.ones(3))(torch.ones(3))["y"])
