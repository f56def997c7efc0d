# Inductor: the result of a loop is allocated anew, after the loop, when a later kernel takes over its memory
#
# A carried value that the loop writes in place is a `MutationOutput`. `codegen_allocation` does not ask its
# `should_allocate`. AOTInductor then declares the same name twice, and the C++ compiler refuses that. `torch.compile`
# reads the new memory: gradients of two chained scans are wrong.
import torch
from torch._higher_order_ops import scan


class Model(torch.nn.Module):
    def forward(self, x):
        def step(carry, row):
            new = carry * 0.5 + row.sin()
            return new, new.clone()

        y = scan(step, x[0] * 0.0, x)[1]
        y = scan(step, x[0] * 0.0, y)[1].cos()
        return scan(step, x[0] * 0.0, y)[1].sum()


x = torch.arange(30.0).reshape(5, 3, 2)
exported = torch.export.export(Model(), (x,))
print("expected", Model()(x))
try:
    print("seen", torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(exported))(x))
except Exception as error:
    print("seen", str(error).partition("error: ")[2].partition(chr(10))[0])
