"""The register of torch fixes: every fault of torch that a build fixes, and every hook into a
private name of torch.

:mod:`.entries` lists them. :mod:`.gate` checks before a build that what they patch fits this torch.
:mod:`.applying` applies them. Entries are data, and importing them imports nothing of torch.
"""
