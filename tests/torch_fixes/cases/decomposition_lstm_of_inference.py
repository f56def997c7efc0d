# method: train
import torch

torch.manual_seed(0)
f = torch.nn.LSTM(3, 4)


def args():
    return (torch.linspace(-1, 1, 30).view(5, 2, 3),)
