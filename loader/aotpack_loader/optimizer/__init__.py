"""Optimizers of a bundle: instances of ``torch.optim.Optimizer`` whose step is compiled code.

Only :meth:`..module.program.LoadInfo.optimizer` imports this package.
"""
