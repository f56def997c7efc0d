"""What ``aotpack train`` does: data, the loop, metrics; and weights as plain safetensors."""
