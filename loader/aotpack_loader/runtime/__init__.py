"""The run time: one call of a method, from the caller's arguments to the caller's results.

It follows a recorded description and repeats the steps of AOTAutograd's run-time wrappers:

* flatten and check the arguments (:mod:`.tree`, :mod:`.inputs`);
* run the graphs inside an ``autograd.Function`` (:mod:`.autograd`);
* write mutations back and rebuild aliases (:mod:`.epilogue`).
"""
