# The CPU's kernel of flash attention ends the process if a size is 0
#
# `scaled_dot_product_attention` avoids the kernel in eager. A graph that was traced with another size
# calls it, and no guard is left. The kernel also reads as many values as there are keys.
import torch

x = torch.rand(3, 2, 0, 8)
print("expected", torch.nn.functional.scaled_dot_product_attention(x, x, x).shape)
print("seen", torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)[0].shape)
