# An LSTM whose weights alone need gradients is traced as oneDNN's kernel for inference
#
# `select_one_layer_lstm_function` looks only at whether the input and the states need gradients.
import torch
import torch._dynamo

torch._dynamo.config.allow_rnn = True
lstm = torch.nn.LSTM(3, 4)
compiled = torch.compile(lstm, backend="aot_eager")
for name, call in (("expected", lstm), ("seen", compiled)):
    lstm.zero_grad()
    call(torch.ones(5, 2, 3))[0].sum().backward()
    print(name, lstm.weight_hh_l0.grad is not None)
