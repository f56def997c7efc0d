"""Tools to test and measure the project: sweeps, random programs, the zoo, benchmarks, vectors of the format."""
