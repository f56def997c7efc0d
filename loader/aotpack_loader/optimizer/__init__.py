"""Optimizers of a bundle: instances of ``torch.optim.Optimizer`` whose step is compiled code.

Only :meth:`..module.info.LoadInfo.optimizer` imports this package.
"""
