"""The sweep over torch's own operator databases: `scripts/conformance`."""
