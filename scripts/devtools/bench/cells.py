"""Cells of the tables: names of networks and contenders, times, sizes and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Results = Mapping[str, Mapping[str, Any]]

NETWORKS = {
    "tiny": "tiny",
    "digits": "digits",
    "digits-1024": "digits, batch 1024",
    "digits-dynamic": "digits",
    "gpt": "GPT, 4 layers",
    "gpt_plain": "GPT",
    "gpt2": "GPT-2 small",
    "resnet50": "ResNet-50",
}
KINDS = {
    "eager": "eager",
    "compile_cold": "`torch.compile`, cold",
    "compile_warm": "`torch.compile`, warm",
    "compile": "`torch.compile`",
    "aot_compile": "`aot_compile`",
    "export": "`torch.export`",
    "aoti": "AOTInductor",
    "bundle_portable": "bundle, portable",
    "bundle_cpu": "bundle, cpu",
    "portable": "bundle, portable",
    "cpu": "bundle, cpu",
    "bundle": "bundle, `xla`",
    "bundle_compiled": "bundle, `xla:cpu`",
    "lazy": "torch_xla",
    "openxla": '`backend="openxla"`',
}
NETWORKS |= {
    "recommender": "recommender, 26 tables of 1,000 by 16",
    "encoder": "`nn.TransformerEncoder`, 3 layers of 128, dropout",
    "resnet": "ResNet, 32 by 32, batch 32",
    "llama": "Llama, 6 layers of 256, batch 4 by 64",
    "graph": "graph network, 500 nodes, 3,000 edges",
    "lstm": "LSTM, 2 layers of 64, batch 16 by 32",
    "gru": "GRU, 2 layers of 64, batch 16 by 32",
    "lstm_wide": "LSTM, bidirectional, 256, batch 16 by 16",
    "text": "embedding, 1-D convolution, dropout",
    "embedding_bag": "`nn.EmbeddingBag`",
    "experts": "mixture of 4 experts",
    "attention_512": "attention over 512 positions",
    "attention_2048": "attention over 2,048 positions",
    "cross_attention": "`nn.MultiheadAttention`, dropout",
    "vision_transformer": "vision transformer, 3 layers of 128",
    "bf16_encoder": "encoder under bf16 autocast",
    "bf16_mlp": "perceptron under bf16 autocast",
    "convolutions_3d": "3-D convolutions",
    "depthwise": "depthwise convolutions",
    "convnext": "ConvNeXt, 4 blocks",
    "channels_last": "ResNet, channels-last",
    "unet": "U-Net of diffusion",
    "spatial_transformer": "spatial transformer",
    "volumes": "volumes: `avg_pool3d`, trilinear",
    "contrastive": "contrastive loss, 768 views",
    "scorer": "`nn.Bilinear`, sums of 4,096 rows",
    "tiny_mlp": "perceptron, 16-32-4",
    "tiny_batch_norm": "perceptron, 16-32-4, BatchNorm",
    "dropout_mlp": "perceptron, 256-512-512-10, dropout",
    "parameters_1000": "1,000 parameters of 8",
    "dynamic_digits": "digits, dynamic batch",
    "dynamic_encoder": "encoder, dynamic batch",
}
WHOLE = "t_from_import_to_first_step"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def time(seconds: float) -> str:
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def size(count: float) -> str:
    return f"{count / 1e3:.3g} kB" if count < 0.9995e6 else f"{count / 1e6:.4g} MB"


def times(ratio: float) -> str:
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2f} times"


def share(whole: float, part: float) -> str:
    """The excess of ``whole`` over ``part``, relative to ``part``."""
    return f"{(whole / part - 1) * 100:.3g} %"


def network_name(name: str) -> str:
    return NETWORKS.get(name, name.replace("_", " "))


def kind_name(kind: str) -> str:
    known, _, detail = kind.partition(", ")
    return f"{KINDS[known]}, {detail}" if detail else KINDS[known]


def time_of(found: Mapping[str, Any] | None, figure: str) -> str:
    return "" if found is None else time(found[figure])
