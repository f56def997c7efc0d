# Graphs: the check of torch.linalg is left out of a graph
#
# `_linalg_check_errors` has no result and no effect that torch knows of, so it is dead code. torch
# 2.13 registers it as an operator with an effect.
import torch


def seen(f):
    try:
        return f(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    except torch.linalg.LinAlgError:
        return "LinAlgError"


print("expected", seen(torch.linalg.cholesky))
print("seen", seen(torch.compile(torch.linalg.cholesky, backend="aot_eager")))
