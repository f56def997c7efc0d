"""Models of transformers for sound, and for text combined with images or layout."""

from __future__ import annotations

from typing import Any

import torch

from devtools.zoo.registry import DROPOUT, IMAGE, TOKENS, VOCABULARY, Inputs, from_transformers, images, tokens
from devtools.zoo.text import ENCODER, causal

SAMPLES = 800

WAVES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 8, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    "classifier_proj_size": 32,
    "num_labels": 4,
}
"""Without what is drawn in Python, outside of any graph: whole layers to drop, spans to mask (numpy)."""

TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "attention_dropout": DROPOUT}  # fmt: skip
WORDS = {**TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0}  # fmt: skip
PIXELS = {**TOWER, "image_size": IMAGE, "patch_size": 8}


def speech(batch: int) -> Inputs:
    return {"input_features": torch.randn(batch, 16, 64), "labels": tokens(batch)}


def waves(batch: int) -> Inputs:
    """Sounds with a class each. (The speech heads compare the labels' values in Python, outside any graph.)"""
    return {"input_values": torch.randn(batch, SAMPLES), "labels": torch.randint(4, (batch,))}


def frozen(model: Any) -> None:
    """Freeze the feature encoder, as in fine-tuning.

    (In training, an unfrozen convolution sets ``requires_grad`` of an activation.)
    """
    model.freeze_feature_encoder()


def pairs(batch: int) -> Inputs:
    """Images, each with a text."""
    return {"input_ids": tokens(batch), **images(batch), "return_loss": True}


def captioned(batch: int) -> Inputs:
    return {**causal(batch), **images(batch)}


def laid_out(batch: int) -> Inputs:
    """Words, each with its position on the page and a label."""
    corner, size = torch.randint(0, 500, (batch, TOKENS, 2)), torch.randint(1, 400, (batch, TOKENS, 2))
    boxes = torch.cat([corner, corner + size], dim=-1)
    return {"input_ids": tokens(batch), "bbox": boxes, "labels": torch.randint(4, (batch, TOKENS))}


ARCHITECTURES = (
    from_transformers("whisper", "Whisper, speech to text", "WhisperForConditionalGeneration", speech,
                      vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                      decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=16,
                      max_source_positions=32, max_target_positions=32, dropout=DROPOUT, attention_dropout=DROPOUT,
                      activation_dropout=DROPOUT, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                      suppress_tokens=None, begin_suppress_tokens=None, use_cache=False),
    from_transformers("wav2vec2", "Wav2Vec2, sound classifier", "Wav2Vec2ForSequenceClassification", waves, prepare=frozen,
                      num_feat_extract_layers=3, **WAVES),
    from_transformers("hubert", "HuBERT, sound classifier", "HubertForSequenceClassification", waves, prepare=frozen, **WAVES),
    from_transformers("clip", "CLIP, images and text", "CLIPModel", pairs, text_config=WORDS, vision_config=PIXELS,
                      projection_dim=32),
    from_transformers("blip", "BLIP, image captions", "BlipForConditionalGeneration", captioned,
                      text_config={**WORDS, "hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT,
                                   "encoder_hidden_size": 32, "projection_dim": 32, "sep_token_id": 2},
                      vision_config=PIXELS, projection_dim=32, image_text_hidden_size=32),
    from_transformers("layoutlm", "LayoutLM, document tokens", "LayoutLMForTokenClassification", laid_out, **ENCODER,
                      num_labels=4),
)  # fmt: skip
