# scan: a backward that needs a result of the step is refused, for an output that is returned twice
import torch
from torch._higher_order_ops import scan


def step(carry, row):
    carry = (carry * row).tanh()
    return carry, carry * row


def f(carry, rows):
    return scan(step, carry, rows)


args = torch.ones(3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
print("expected", f(*args)[1].requires_grad)
print("seen", torch.compile(f, backend="aot_eager")(*args)[1].requires_grad)
