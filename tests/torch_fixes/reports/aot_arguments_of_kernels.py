# AOTAutograd: types and sizes that eager refuses are taken
#
# Fake kernels and decompositions check less than kernels do. `index_add` expands what it adds, and
# `diagonal_scatter` expands what it writes. Without Inductor, `linear` multiplies half precision with `float32`.
import torch


def added(x, y):
    return x.index_add(0, torch.tensor([0, 1]), y)


for function, arguments in (
    (added, (torch.ones(3, 2), torch.ones(2))),
    (torch.diagonal_scatter, (torch.ones(3, 3), torch.ones(1))),
):
    for name, called in (("expected", function), ("seen", torch.compile(function))):
        try:
            print(name, called(*arguments).dtype)
        except RuntimeError as error:
            print(name, "RuntimeError:", str(error).splitlines()[0])
