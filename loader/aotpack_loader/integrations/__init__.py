"""What other libraries ask of a loaded program: ``transformers``, ``peft``, Jupyter and the caller's ``torch.compile``.

The class of a program (:mod:`..opening.own_class`) brings them in. A plain start imports none of it.
"""
