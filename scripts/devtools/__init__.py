"""What the project is tested and measured with: sweeps, random programs, the zoo, benchmarks, vectors of the format."""
