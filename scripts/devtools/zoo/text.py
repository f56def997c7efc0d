"""Language models of transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from devtools.zoo.registry import DROPOUT, TOKENS, VOCABULARY, Architecture, Inputs, from_transformers, tokens

ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
"""Sizes that encoders have in common; those of this family have dropout by default."""
DECODER = {**ENCODER, "use_cache": False}
"""Sizes that decoder-only models have in common; those of this family have no dropout by default."""
ATTENTION = {"attention_dropout": DROPOUT}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
    "dropout": DROPOUT,
    "attention_dropout": DROPOUT,
    "activation_dropout": DROPOUT,
    "pad_token_id": 0,
    "use_cache": False,
}


def causal(batch: int, length: int = TOKENS) -> Inputs:
    """Tokens, and the same as labels."""
    input_ids = tokens(batch, length)
    return {"input_ids": input_ids, "labels": input_ids.clone()}


def masked(batch: int) -> Inputs:
    """Sentences of two lengths, with every second token masked out."""
    mask = torch.ones(batch, TOKENS, dtype=torch.long)
    mask[-1, TOKENS // 2 :] = 0
    labels = tokens(batch)
    labels[:, ::2] = -100
    return {"input_ids": tokens(batch), "attention_mask": mask, "labels": labels}


def replaced(batch: int) -> Inputs:
    """Tokens, and labels that mark which of them were replaced."""
    return {"input_ids": tokens(batch), "labels": torch.randint(2, (batch, TOKENS))}


def translated(batch: int) -> Inputs:
    """Tokens, and shorter labels."""
    return {"input_ids": tokens(batch), "labels": tokens(batch, TOKENS // 2)}


decoder = partial(from_transformers, inputs=causal)
encoder = partial(from_transformers, inputs=masked)
translator = partial(from_transformers, inputs=translated)


def mixtral(name: str, title: str, experts: str, **options: Any) -> Architecture:
    """A mixture of four experts, which run in one of transformers' implementations."""
    sizes = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": experts}
    return decoder(name, title, "MixtralForCausalLM", **DECODER, **sizes, **ATTENTION, **options)


ARCHITECTURES = (
    decoder("gpt2", "GPT-2, language model", "GPT2LMHeadModel", vocab_size=VOCABULARY, n_positions=64, n_embd=64,
            n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, use_cache=False),
    decoder("gpt_neox", "GPT-NeoX, language model", "GPTNeoXForCausalLM", **DECODER, **ATTENTION, hidden_dropout=DROPOUT),
    decoder("llama", "Llama, language model", "LlamaForCausalLM", **DECODER, **ATTENTION, num_key_value_heads=2),
    decoder("mistral", "Mistral, language model with a sliding window", "MistralForCausalLM", **DECODER, **ATTENTION,
            num_key_value_heads=2, sliding_window=8),
    decoder("qwen2", "Qwen2, language model", "Qwen2ForCausalLM", **DECODER, **ATTENTION, num_key_value_heads=2),
    decoder("gemma2", "Gemma 2, language model", "Gemma2ForCausalLM", **DECODER, **ATTENTION, num_key_value_heads=2, head_dim=16,
            sliding_window=8),
    decoder("phi", "Phi, language model", "PhiForCausalLM", **DECODER, **ATTENTION, resid_pdrop=DROPOUT, embd_pdrop=DROPOUT),
    decoder("falcon", "Falcon, language model", "FalconForCausalLM", vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2,
            num_attention_heads=4, **ATTENTION, hidden_dropout=DROPOUT, use_cache=False),
    decoder("opt", "OPT, language model", "OPTForCausalLM", vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2,
            num_attention_heads=4, ffn_dim=128, max_position_embeddings=64, word_embed_proj_dim=64, **ATTENTION, use_cache=False),
    decoder("bloom", "BLOOM, language model", "BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4,
            **ATTENTION, hidden_dropout=DROPOUT, use_cache=False),
    mixtral("mixtral", "Mixtral, mixture of 4 experts", "batched_mm"),
    # In float32 transformers traces an operator of its own instead. A loader would then need
    # transformers.
    mixtral("mixtral_grouped", "Mixtral in bfloat16, `grouped_mm` experts", "grouped_mm", dtype=torch.bfloat16, tolerance=2e-2,
            note="Gradients: traced, transformers repeats keys and values before the attention operator, not in it, so theirs "
                 "are added up in bfloat16 instead of float32. Eager made to do the same gives the bundle's very gradients."),
    decoder("mamba", "Mamba, state-space language model", "MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=64,
            num_hidden_layers=2, state_size=8, use_cache=False),
    decoder("mamba2", "Mamba 2, state-space language model", "Mamba2ForCausalLM", vocab_size=VOCABULARY, hidden_size=64,
            num_hidden_layers=2, state_size=8, num_heads=8, head_dim=16, n_groups=2, chunk_size=8, use_cache=False),
    decoder("rwkv", "RWKV, recurrent language model", "RwkvForCausalLM", inputs=partial(causal, length=4), vocab_size=VOCABULARY,
            hidden_size=64, num_hidden_layers=2, context_length=4, use_cache=False, methods=("train",),
            note="Training alone: its first call in eval mode divides weights and notes so in Python, which a build refuses."),
    decoder("xlnet", "XLNet, language model", "XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=64, n_layer=2, n_head=4,
            d_inner=128, use_mems_train=False, use_mems_eval=False),
    encoder("bert", "BERT, masked language model", "BertForMaskedLM", **ENCODER),
    encoder("roberta", "RoBERTa, masked language model", "RobertaForMaskedLM", **ENCODER),
    encoder("albert", "ALBERT, masked language model", "AlbertForMaskedLM", **ENCODER, embedding_size=32,
            hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT),
    encoder("distilbert", "DistilBERT, masked language model", "DistilBertForMaskedLM", vocab_size=VOCABULARY, dim=64, n_layers=2,
            n_heads=4, hidden_dim=128, max_position_embeddings=64),
    encoder("deberta_v2", "DeBERTa-v2, masked language model", "DebertaV2ForMaskedLM", **ENCODER, relative_attention=True,
            position_buckets=8, pos_att_type=["p2c", "c2p"]),
    # Without tokens with global attention, because their number determines sizes.
    encoder("longformer", "Longformer, masked language model", "LongformerForMaskedLM", branches="example", **ENCODER,
            attention_window=8),
    encoder("electra", "ELECTRA, discriminator", "ElectraForPreTraining", inputs=replaced, **ENCODER, embedding_size=32),
    translator("t5", "T5, encoder and decoder", "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=64,
               d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0, use_cache=False),
    translator("bart", "BART, encoder and decoder", "BartForConditionalGeneration", **SEQ2SEQ, decoder_start_token_id=2),
    translator("pegasus", "Pegasus, encoder and decoder", "PegasusForConditionalGeneration", **SEQ2SEQ, decoder_start_token_id=0),
)  # fmt: skip
