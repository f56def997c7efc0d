"""A small GPT-2 over bytes, from transformers, with random weights. Only the build machine needs this file."""

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT = 128


class ByteGPT(nn.Module):
    """GPT-2 that returns its loss and logits and nothing else; ``labels`` are the inputs, shifted inside."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=256,
                n_positions=CONTEXT,
                n_embd=128,
                n_layer=4,
                n_head=4,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=0,
                eos_token_id=0,
                use_cache=False,
            )
        )
        self.gpt.loss_type = "ForCausalLM"  # what transformers falls back to, with a warning, for this class

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = self.gpt(input_ids=input_ids, labels=labels)
        return {"loss": output.loss, "logits": output.logits}


def model() -> nn.Module:
    return ByteGPT()


def example_inputs() -> tuple[tuple[()], dict[str, Tensor]]:
    input_ids = torch.randint(256, (8, CONTEXT))
    return (), {"input_ids": input_ids, "labels": input_ids.clone()}
