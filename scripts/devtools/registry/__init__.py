"""Measures push and pull with a real registry on loopback. It needs docker-registry and skopeo."""
