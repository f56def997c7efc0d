"""Random programs, compared with eager: `scripts/programs`."""
