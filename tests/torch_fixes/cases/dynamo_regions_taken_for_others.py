# front_ends: dynamo
import torch


class Layer(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.activation = activation

    @torch.compiler.nested_compile_region
    def forward(self, x):
        return self.activation(self.linear(x))


f = torch.nn.Sequential(Layer(torch.nn.ReLU()), Layer(torch.nn.Tanh()), Layer(torch.nn.Sigmoid()))


def args():
    return (torch.rand(2, 3),)
