"""The register of torch fixes for maintainers: recorded sources, upstream reports, pages of the documentation."""
