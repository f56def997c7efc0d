"""The module that a load returns, which behaves like the original. Start reading at :mod:`.program`.

It shows the original's modules, parameters and attributes (:mod:`.submodules`), and refuses edits that
compiled code cannot follow (:mod:`.edits`).
"""
