"""The types of the documents of a bundle, by subject. :mod:`aotpack_loader.format.schema` has them all."""
