"""The build, stage by stage: :mod:`.pipeline` is its table of contents."""
