"""What AOTAutograd keeps true, a bundle keeps true: a table of cases, eager against build, file and load."""
