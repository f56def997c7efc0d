"""Models of diffusers. None has a loss of its own, and few have dropout."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from devtools.zoo.registry import CLASSES, DROPOUT, Architecture, Inputs, Objective

SIZE = 16
LATENT = 4
TEXT = 32

BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
CROSS = {
    **BLOCKS,
    "in_channels": LATENT,
    "cross_attention_dim": TEXT,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
}
CODER = {
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    "latent_channels": LATENT,
}


def noisy(batch: int, channels: int = 3) -> Inputs:
    """Noisy images, each with its noise level."""
    return {"sample": torch.randn(batch, channels, SIZE, SIZE), "timestep": torch.randint(0, 1000, (batch,))}


def prompted(batch: int) -> Inputs:
    """Noisy latents, each with an encoded text."""
    return {**noisy(batch, LATENT), "encoder_hidden_states": torch.randn(batch, 8, TEXT)}


def controlled(batch: int) -> Inputs:
    return {**prompted(batch), "controlnet_cond": torch.randn(batch, 3, SIZE * 2, SIZE * 2)}


def labelled_latents(batch: int) -> Inputs:
    noise = noisy(batch, LATENT)
    return {"hidden_states": noise["sample"], "timestep": noise["timestep"], "class_labels": torch.randint(CLASSES, (batch,))}


def prompted_latents(batch: int) -> Inputs:
    given = prompted(batch)
    return {
        "hidden_states": given["sample"],
        "encoder_hidden_states": given["encoder_hidden_states"],
        "pooled_projections": torch.randn(batch, TEXT),
        "timestep": given["timestep"],
    }


def plain(batch: int) -> Inputs:
    return {"sample": torch.randn(batch, 3, SIZE, SIZE)}


def diffuser(
    name: str,
    title: str,
    model: str,
    inputs: Callable[[int], Inputs],
    *,
    results: tuple[str, ...] = ("sample",),
    note: str = "",
    **settings: Any,
) -> Architecture:
    """The class ``model`` of diffusers."""

    def make() -> nn.Module:
        made = getattr(importlib.import_module("diffusers"), model)(**settings)
        return Objective(made, *results)

    return Architecture(name, title, "diffusers", make, inputs, note=note)


ARCHITECTURES = (
    diffuser("unet", "UNet2D, denoiser", "UNet2DModel", noisy, **BLOCKS, dropout=DROPOUT, sample_size=SIZE,
             down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
             attention_head_dim=8, note="Gradients on `portable`: of one bias of a convolution, by one unit in the last place."),
    diffuser("unet_condition", "UNet2D with text, denoiser", "UNet2DConditionModel", prompted, **CROSS, dropout=DROPOUT,
             sample_size=SIZE, out_channels=LATENT, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")),
    diffuser("controlnet", "ControlNet", "ControlNetModel", controlled, **CROSS, conditioning_embedding_out_channels=(8, 16),
             results=("down_block_res_samples", "mid_block_res_sample")),
    diffuser("autoencoder_kl", "AutoencoderKL", "AutoencoderKL", plain, **CODER, sample_size=SIZE),
    diffuser("vq", "VQModel, vector-quantised autoencoder", "VQModel", plain, **CODER, num_vq_embeddings=32),
    diffuser("dit", "DiT, denoiser", "DiTTransformer2DModel", labelled_latents, num_attention_heads=2, attention_head_dim=8,
             in_channels=LATENT, num_layers=2, sample_size=SIZE, patch_size=2, norm_num_groups=1, num_embeds_ada_norm=CLASSES,
             dropout=DROPOUT),
    diffuser("sd3", "Stable Diffusion 3, transformer", "SD3Transformer2DModel", prompted_latents, sample_size=SIZE, patch_size=2,
             in_channels=LATENT, out_channels=LATENT, num_layers=2, attention_head_dim=8, num_attention_heads=2,
             joint_attention_dim=TEXT, caption_projection_dim=16, pooled_projection_dim=TEXT, pos_embed_max_size=SIZE),
)  # fmt: skip
