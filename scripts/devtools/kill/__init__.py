"""Kills builds, pushes, pulls and loads at random points, and checks what they leave. It needs docker-registry."""
