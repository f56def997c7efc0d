"""Fixes of torch's dynamo."""
