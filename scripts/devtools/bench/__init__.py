"""The benchmarks: `scripts/bench/run`."""
