"""Measures and strains push and pull with a real registry on loopback: ``bench`` and ``kill``. Both need docker-registry."""
