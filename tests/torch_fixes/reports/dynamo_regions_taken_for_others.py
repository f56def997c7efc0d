# Dynamo: a nested compile region of one layer is used for another one with another activation
#
# The third region is not traced. Dynamo repeats an earlier trace if its guards hold, and they do not
# compare the classes of submodules here. The same happens with functions that close over different
# modules.
import torch


class Layer(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)
        self.activation = activation

    @torch.compiler.nested_compile_region
    def forward(self, x):
        return self.activation(self.linear(x))


model = torch.nn.Sequential(Layer(torch.nn.ReLU()), Layer(torch.nn.Tanh()), Layer(torch.nn.Sigmoid()))
x = torch.ones(1, 1)
print("expected", model(x).item())
print("seen", torch.compile(model, backend="aot_eager", fullgraph=True)(x).item())
