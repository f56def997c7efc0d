"""Known architectures, built and trained where their source is out of reach: `scripts/zoo`, `scripts/zoo-xla`."""
