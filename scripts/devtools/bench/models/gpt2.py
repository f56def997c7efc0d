"""GPT-2 small in its real size (12 layers, width 768, 124 million parameters), random weights, one sequence of 64 tokens."""

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 64


class GPT2(nn.Module):
    """Returns loss and logits. ``labels`` are the inputs, which the model shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))
        self.gpt.loss_type = "ForCausalLM"  # transformers' default for this class, set to avoid its warning

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = self.gpt(input_ids=input_ids, labels=labels)
        return {"loss": output.loss, "logits": output.logits}


def model() -> nn.Module:
    return GPT2()


def example_inputs() -> tuple[tuple[()], dict[str, Tensor]]:
    input_ids = torch.randint(50257, (1, LENGTH))
    return (), {"input_ids": input_ids, "labels": input_ids.clone()}
