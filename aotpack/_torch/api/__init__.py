"""Thin adapters over private torch APIs: each module covers one part of torch and knows no fix."""
