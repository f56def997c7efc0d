"""Checkpoints of a training run: a folder of safetensors files and one JSON document.

:mod:`.saving` takes a snapshot and writes it, :mod:`.loading` checks one and applies it. :mod:`.folder` is what lies on disk,
:mod:`.document` what the JSON says.
"""
