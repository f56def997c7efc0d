# AOTAutograd: writes into one output of `split` go through, which eager refuses
#
# `_functionalize_is_multi_output_view` lets AOTAutograd hide from autograd that the results share memory.
import torch


def f(x):
    y = x * 2
    return (*y.split(1), y.view(-1))


def write(call):
    first = call(torch.rand(2, 3, requires_grad=True))[0]
    try:
        first.mul_(2)
    except RuntimeError as error:
        return str(error)[:80]
    return "no error"


print("expected", write(f))
print("seen", write(torch.compile(f, backend="aot_eager")))
