"""Image models of transformers: classifiers, detectors, segmentation. Models without a loss of their own get one."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from devtools.zoo.registry import (
    CLASSES,
    DROPOUT,
    IMAGE,
    RESAMPLED,
    Architecture,
    Inputs,
    from_transformers,
    images,
    labelled_images,
)

TRANSFORMER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": IMAGE,
    "patch_size": 8,
    "num_labels": CLASSES,
    "hidden_dropout_prob": DROPOUT,
    "attention_probs_dropout_prob": DROPOUT,
}
RESIDUAL = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "num_labels": CLASSES}


def labelled_pixels(batch: int) -> Inputs:
    """Images, and a class for each pixel."""
    return {**images(batch, 64), "labels": torch.randint(CLASSES, (batch, 64, 64))}


def large_images(batch: int) -> Inputs:
    return images(batch, 64)


def large_labelled_images(batch: int) -> Inputs:
    """Images large enough that BatchNorm after five halvings still gets many values.

    From two values it would make +1 and -1, whatever they are.
    """
    return {**images(batch, 64), "labels": torch.randint(CLASSES, (batch,))}


classifier = partial(from_transformers, inputs=labelled_images)
narrowing = partial(from_transformers, inputs=large_labelled_images, batch=8, image_size=64)


def backbone(**outer: Any) -> dict[str, Any]:
    """A small residual network below a detector."""
    from transformers import ResNetConfig

    features = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"])
    return {"backbone_config": features, "use_timm_backbone": False, "use_pretrained_backbone": False, **outer}


def detr() -> nn.Module:
    """DETR. Its own loss matches boxes with scipy, outside any graph."""
    from transformers import DetrConfig, DetrForObjectDetection

    from devtools.zoo.registry import Objective

    config = DetrConfig(
        **backbone(num_queries=6, num_labels=CLASSES, d_model=32),
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
    )
    return Objective(DetrForObjectDetection(config), "logits", "pred_boxes")


def maskformer() -> nn.Module:
    """MaskFormer. Its own loss matches masks with scipy, outside any graph."""
    from transformers import DetrConfig, MaskFormerConfig, MaskFormerForInstanceSegmentation, SwinConfig

    from devtools.zoo.registry import Objective

    swin = SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 2], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    decoder = DetrConfig(
        **backbone(num_queries=6, d_model=32), decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, encoder_layers=1,
    )  # fmt: skip
    config = MaskFormerConfig(
        fpn_feature_size=32, mask_feature_size=32, backbone_config=swin, decoder_config=decoder, num_labels=CLASSES
    )
    return Objective(MaskFormerForInstanceSegmentation(config), "class_queries_logits", "masks_queries_logits")


ARCHITECTURES = (
    classifier("vit", "ViT, image classifier", "ViTForImageClassification", **TRANSFORMER),
    classifier("deit", "DeiT, image classifier", "DeiTForImageClassification", **TRANSFORMER),
    classifier("beit", "BEiT, image classifier", "BeitForImageClassification", **TRANSFORMER, drop_path_rate=DROPOUT),
    classifier("swin", "Swin, image classifier", "SwinForImageClassification", image_size=IMAGE, patch_size=2, embed_dim=16,
               depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=CLASSES, hidden_dropout_prob=DROPOUT,
               attention_probs_dropout_prob=DROPOUT, drop_path_rate=0.2),
    classifier("convnext", "ConvNeXt, image classifier", "ConvNextForImageClassification", hidden_sizes=[16, 32], depths=[2, 2],
               num_stages=2, drop_path_rate=0.2, num_labels=CLASSES),
    classifier("resnet", "ResNet, image classifier", "ResNetForImageClassification", layer_type="basic", **RESIDUAL),
    classifier("regnet", "RegNet, image classifier", "RegNetForImageClassification", groups_width=8, **RESIDUAL),
    narrowing("efficientnet", "EfficientNet, image classifier", "EfficientNetForImageClassification", width_coefficient=0.25,
              depth_coefficient=0.25, hidden_dim=320, num_labels=CLASSES, dropout_rate=DROPOUT),
    narrowing("mobilenet_v2", "MobileNetV2, image classifier", "MobileNetV2ForImageClassification", depth_multiplier=0.35,
              num_labels=CLASSES, classifier_dropout_prob=DROPOUT, unstable=True),
    from_transformers("segformer", "SegFormer, semantic segmentation", "SegformerForSemanticSegmentation", labelled_pixels,
                      hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4],
                      decoder_hidden_size=32, num_labels=CLASSES, hidden_dropout_prob=DROPOUT,
                      attention_probs_dropout_prob=DROPOUT, note=RESAMPLED),
    Architecture("detr", "DETR, object detector", "transformers", detr, large_images, branches="example"),
    Architecture("maskformer", "MaskFormer, instance segmentation", "transformers", maskformer, large_images),
)  # fmt: skip
