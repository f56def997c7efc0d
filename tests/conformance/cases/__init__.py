"""The cases of the table, by area."""
