# AOTInductor: the message of `torch._check` is lost
#
# The generated code asserts what the ShapeEnv knows, and names the expression only.
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        n = x.item()
        torch._check(n > 2, lambda: "too few rows")
        return torch.ones(5) * n


exported = torch.export.export(Model(), (torch.tensor(4),))
compiled = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(exported))
for name, call in (("expected", Model()), ("seen", compiled)):
    try:
        call(torch.tensor(1))
    except RuntimeError as error:
        print(name, "too few rows" in str(error))
