"""All architectures, by name."""

from __future__ import annotations

from devtools.zoo import diffusion, images, mixed, text, timm_images
from devtools.zoo.registry import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    item.name: item for module in (text, images, mixed, timm_images, diffusion) for item in module.ARCHITECTURES
}
