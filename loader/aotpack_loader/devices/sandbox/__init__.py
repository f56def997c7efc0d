"""What runs a bundle that nothing vouches for: operators of a list, with arguments checked before each call.

:mod:`.untrusted` replaces the operators of a graph, :mod:`.allowed` is the list, and the other modules
hold its rules. :mod:`.untrusted_calls` undoes what a failed call wrote. Loads of trusted bundles import
none of it. It does not replace a sandbox of the operating system (spec/security.md).
"""
