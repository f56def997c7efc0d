# Inductor: an index out of bounds ends the process
#
# The exception leaves a parallel region of OpenMP, which calls `std::terminate`.
import torch


def f(x, i):
    return x.sin()[i] * 2


torch.set_num_threads(2)
args = torch.rand(4, 5), torch.full((40000,), 4)
try:
    f(*args)
except IndexError as error:
    print("expected", error)
try:
    torch.compile(f)(*args)
except Exception as error:
    print("seen", error)
