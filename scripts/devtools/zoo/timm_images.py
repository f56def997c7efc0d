"""Image classifiers of timm, which have no loss of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from devtools.zoo.registry import CLASSES, DROPOUT, IMAGE, Architecture, Inputs, Objective, taken_from


def pixels(batch: int) -> Inputs:
    return {"x": torch.randn(batch, 3, IMAGE, IMAGE)}


def large_pixels(batch: int) -> Inputs:
    return {"x": torch.randn(batch, 3, 2 * IMAGE, 2 * IMAGE)}


def classifier(name: str, title: str, model: str, **settings: Any) -> Architecture:
    """timm's ``model``.

    It has dropout before its last layer, unless ``settings`` (of entry and model) say otherwise.
    """
    inputs, options = settings.pop("inputs", pixels), taken_from(settings)

    def make() -> nn.Module:
        import timm

        made = getattr(timm.models, model)
        return Objective(made(num_classes=CLASSES, **{"drop_rate": DROPOUT, **settings}))

    return Architecture(name, f"{title} (timm)", "timm", make, inputs, **options)


narrowing = partial(classifier, inputs=large_pixels, batch=8)
"""Of networks that end in BatchNorm over few positions: of two values it makes +1 and -1, whatever they are."""


ARCHITECTURES = (
    narrowing("timm_resnet", "ResNet with stochastic depth", "resnet10t", drop_path_rate=0.2),
    classifier("timm_densenet", "DenseNet", "densenet121", growth_rate=8, block_config=(2, 2), proj_drop_rate=DROPOUT),
    narrowing("timm_efficientnet", "EfficientNet", "test_efficientnet", drop_path_rate=0.2),
    narrowing("timm_mobilenet_v3", "MobileNetV3", "mobilenetv3_small_050"),
    classifier("timm_mixer", "MLP-Mixer", "MlpMixer", img_size=IMAGE, patch_size=8, embed_dim=64, num_blocks=2,
               proj_drop_rate=DROPOUT),
    classifier("timm_vit", "ViT with layer scale", "vit_tiny_patch16_224", img_size=IMAGE, patch_size=8, embed_dim=64, depth=2,
               num_heads=4, init_values=0.1, proj_drop_rate=DROPOUT, attn_drop_rate=DROPOUT, drop_path_rate=0.2),
    classifier("timm_convnext", "ConvNeXt", "convnext_atto", depths=(1, 1, 2, 1), dims=(16, 16, 32, 32), drop_path_rate=0.2),
    classifier("timm_maxvit", "MaxViT", "maxvit_rmlp_pico_rw_256", inputs=large_pixels, img_size=2 * IMAGE,
               embed_dim=(32, 32, 32, 32), depths=(1, 1, 1, 1), stem_width=(8, 16), drop_path_rate=0.2),
    classifier("timm_coat", "CoaT", "coat_lite_tiny", img_size=2 * IMAGE, inputs=large_pixels, embed_dims=(16, 16, 32, 32),
               serial_depths=(1, 1, 1, 1), num_heads=8, proj_drop_rate=DROPOUT),
    narrowing("timm_ghostnet", "GhostNet", "ghostnet_050", unstable=True),
    classifier("timm_xcit", "XCiT", "xcit_nano_12_p8_224", img_size=IMAGE, embed_dim=32, depth=2, num_heads=4,
               proj_drop_rate=DROPOUT, attn_drop_rate=DROPOUT, drop_path_rate=0.2),
)  # fmt: skip
