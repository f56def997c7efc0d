"""Rules by which Inductor generates other code than its own: each module has one, for speed or memory."""
