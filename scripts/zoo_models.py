"""The zoo's registry: one function per architecture, at reduced size, with random weights and a loss of its own.

A function takes a batch size and returns ``(model, args, kwargs, dynamic_shapes)``; the last is None, or what a build
with a dynamic batch is given. Adding an architecture means adding a function with ``@architecture``. Dropout is off
by configuration: what it draws is not compared here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any], dict[str, Any] | None]

VOCABULARY = 256
TOKENS = 16
IMAGE = 32
CLASSES = 10


@dataclass(frozen=True)
class Architecture:
    """An entry of the registry. ``batch`` is the size to build with; ``dynamic``: built with a dynamic batch too."""

    name: str
    title: str
    make: Callable[[int], Case]
    batch: int = 2
    dynamic: bool = True


ARCHITECTURES: dict[str, Architecture] = {}


def architecture(title: str, **options: Any) -> Callable[[Callable[[int], Case]], Callable[[int], Case]]:
    """Enter a function in the registry under its own name; ``title`` names the model's class and task."""

    def enter(make: Callable[[int], Case]) -> Callable[[int], Case]:
        name = make.__name__
        ARCHITECTURES[name] = Architecture(name, title, make, **options)
        return make

    return enter


# ---------------------------------------------------------------- text


@architecture("GPT-2, language model")
def gpt2(batch: int) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return causal(GPT2LMHeadModel(config), batch)


@architecture("Llama, language model")
def llama(batch: int) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    return causal(LlamaForCausalLM(LlamaConfig(**decoder(), num_key_value_heads=2)), batch)


@architecture("Mixtral, mixture of 4 experts")
def mixtral(batch: int) -> Case:
    return mixture_of_experts("batched_mm", batch)


@architecture("Mixtral, `grouped_mm` experts")
def mixtral_grouped(batch: int) -> Case:
    """The default of transformers, which on a CPU stands for a custom operator of its own."""
    return mixture_of_experts("grouped_mm", batch)


@architecture("Mamba, state-space language model")
def mamba(batch: int) -> Case:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, state_size=8, use_cache=False)
    return causal(MambaForCausalLM(config), batch)


@architecture("BERT, masked language model")
def bert(batch: int) -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    mask = torch.ones(batch, TOKENS, dtype=torch.long)
    mask[-1, TOKENS // 2 :] = 0  # the last sentence is shorter
    labels = tokens(batch)
    labels[:, ::2] = -100  # only every second token was masked out
    inputs = {"input_ids": tokens(batch), "attention_mask": mask, "labels": labels}
    return BertForMaskedLM(config), (), inputs, batch_of(inputs)


@architecture("T5, encoder and decoder")
def t5(batch: int) -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    inputs = {"input_ids": tokens(batch), "labels": tokens(batch, TOKENS // 2)}
    return T5ForConditionalGeneration(config), (), inputs, batch_of(inputs)


# ---------------------------------------------------------------- images


@architecture("ViT, image classifier")
def vit(batch: int) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=IMAGE,
        patch_size=8,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return classifier(ViTForImageClassification(config), batch)


@architecture("ResNet, image classifier")
def resnet(batch: int) -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic", num_labels=CLASSES)
    return classifier(ResNetForImageClassification(config), batch)


# ---------------------------------------------------------------- sound


@architecture("Whisper, speech to text")
def whisper(batch: int) -> Case:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=16,
        max_source_positions=32,
        max_target_positions=32,
        dropout=0.0,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        use_cache=False,
    )
    inputs = {"input_features": torch.randn(batch, 16, 64), "labels": tokens(batch)}
    return WhisperForConditionalGeneration(config), (), inputs, batch_of(inputs)


# ---------------------------------------------------------------- parts


def decoder() -> dict[str, Any]:
    """Sizes that decoder-only language models have in common."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "use_cache": False,
    }


def mixture_of_experts(implementation: str, batch: int) -> Case:
    """A Mixtral whose experts run in one of the ways that transformers has."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **decoder(),
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_implementation=implementation,
    )
    return causal(MixtralForCausalLM(config), batch)


def causal(model: nn.Module, batch: int) -> Case:
    """A language model with its inputs as labels."""
    input_ids = tokens(batch)
    inputs = {"input_ids": input_ids, "labels": input_ids.clone()}
    return model, (), inputs, batch_of(inputs)


def classifier(model: nn.Module, batch: int) -> Case:
    """An image classifier with random images."""
    inputs = {"pixel_values": torch.randn(batch, 3, IMAGE, IMAGE), "labels": torch.randint(CLASSES, (batch,))}
    return model, (), inputs, batch_of(inputs)


def tokens(batch: int, length: int = TOKENS) -> Tensor:
    """Random token numbers; 0 to 2 are left to padding and the like."""
    return torch.randint(3, VOCABULARY, (batch, length))


def batch_of(inputs: dict[str, Tensor]) -> dict[str, Any]:
    """``dynamic_shapes`` of inputs whose first size is the batch."""
    batch = Dim("batch", min=2, max=64)
    return {name: {0: batch} for name in inputs}
