"""What scripts/release runs where the loader's wheel alone is installed: trains model.aotpack."""

import importlib.util

import torch

import aotpack_loader

assert importlib.util.find_spec("aotpack") is None, "the compiler is not to be installed here"
torch.manual_seed(0)
model = aotpack_loader.load("model.aotpack", trust="all")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8)
losses = []
for _ in range(20):
    optimizer.zero_grad()
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
print(f"trained from the loader's wheel: loss {losses[0]:.3f} to {losses[-1]:.3f}, torch {torch.__version__}")
