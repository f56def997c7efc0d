# Decompositions of LSTM, GRU and RNN forget the dropout between the layers
#
# `_rnn_helper` asks `num_layers < i - 1`, which is never true. With a dropout of 1 the second layer
# reads zeros.
import torch
import torch._dynamo

torch._dynamo.config.allow_rnn = True
torch.manual_seed(0)
gru = torch.nn.GRU(1, 2, num_layers=2, dropout=1.0)
x = torch.ones(2, 1)
print("expected", gru(x)[0].detach())
print("seen", torch.compile(gru, backend="aot_eager")(x)[0].detach())
