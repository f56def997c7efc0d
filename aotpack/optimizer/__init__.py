"""Optimizers as graphs: the update of one parameter, as a function of tensors.

A build asks for the optimizer (:mod:`.asked`), finds out what its first step sets up (:mod:`.first_steps`), and
traces its step for one parameter of each kind (:mod:`.update`).
"""
