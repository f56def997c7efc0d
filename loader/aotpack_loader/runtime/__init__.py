"""Run time: one call of a method, from the caller's arguments to the caller's results.

The steps AOTAutograd's run-time wrappers do, from data: flatten and check (:mod:`.tree`, :mod:`.inputs`), run inside an
``autograd.Function`` (:mod:`.autograd`), write mutations back and rebuild aliases (:mod:`.epilogue`).
"""
