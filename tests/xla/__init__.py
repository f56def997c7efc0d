"""Tests of the XLA target; scripts/test-xla runs them in torch_xla's own environment."""
