"""The networks of the benchmark ``networks``: for each kind of model, how one step compares.

Each module has factories of one area. A factory returns a network and its arguments. A network
returns its loss, so that a step is a forward and a backward.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from . import attention, convolutions, resampling, sequences, sparse, tiny

Factory = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]

FACTORIES: dict[str, Factory] = {
    "recommender": sparse.recommender,
    "encoder": attention.encoder,
    "resnet": convolutions.resnet,
    "llama": attention.llama,
    "graph": sparse.graph,
    "lstm": sequences.lstm,
    "gru": sequences.gru,
    "lstm_wide": sequences.lstm_wide,
    "text": sequences.text,
    "embedding_bag": sparse.embedding_bag,
    "experts": sparse.experts,
    "attention_512": attention.attention_512,
    "attention_2048": attention.attention_2048,
    "cross_attention": attention.cross_attention,
    "vision_transformer": attention.vision_transformer,
    "bf16_encoder": attention.bf16_encoder,
    "bf16_mlp": tiny.bf16_mlp,
    "convolutions_3d": convolutions.three_dimensions,
    "depthwise": convolutions.depthwise,
    "convnext": convolutions.convnext,
    "group_norm": convolutions.group_norm,
    "instance_norm": convolutions.instance_norm,
    "channels_last": convolutions.channels_last,
    "unet": convolutions.unet,
    "autoencoder": convolutions.autoencoder,
    "capsules": convolutions.capsules,
    "spatial_transformer": resampling.spatial_transformer,
    "volumes": resampling.volumes,
    "contrastive": resampling.contrastive,
    "scorer": resampling.scorer,
    "segmentation": resampling.segmentation,
    "keypoints": resampling.keypoints,
    "spectrograms": resampling.spectrograms,
    "tiny_mlp": tiny.mlp,
    "tiny_batch_norm": tiny.batch_norm,
    "dropout_mlp": tiny.dropout_mlp,
    "parameters_1000": tiny.many_parameters,
}
"""Networks by name, those of the first table of issue 24 first."""
