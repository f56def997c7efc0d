"""Compiles graphs ahead of time with AOTInductor."""
