"""Compares a bundle with the model in eager, for the builds themselves, the tests and the sweeps.

:mod:`.observation` says what a caller can see of a call and what of it differs, :mod:`.calling`
makes the call, and :mod:`.rounding` tells rounding from errors. :mod:`.eager` runs the model without
changing it, :mod:`.draws` makes further inputs, and :mod:`.faults` finds where an error begins.
"""
