"""Loops: those of torch, in a form that torch can trace, and those of the user's Python, as scans."""
