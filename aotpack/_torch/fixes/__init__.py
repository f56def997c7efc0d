"""The register of torch fixes: every fault of torch that a build corrects, and every hook into a private name of torch.

:mod:`.entries` lists them, :mod:`.gate` compares what they patch with this torch before a build, :mod:`.applying` applies them.
Entries are data, and importing them imports nothing of torch.
"""
