"""All architectures, by name."""

from __future__ import annotations

import diffusion
import images
import mixed
import text
import timm_images
from registry import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    item.name: item for module in (text, images, mixed, timm_images, diffusion) for item in module.ARCHITECTURES
}
