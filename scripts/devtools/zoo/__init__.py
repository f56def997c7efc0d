"""Known architectures, built and then trained without access to their source: `scripts/zoo`, `scripts/zoo-xla`."""
