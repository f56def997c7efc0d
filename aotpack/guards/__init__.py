"""When the graphs of a trace hold for sizes that torch has guarded against while it traced."""
