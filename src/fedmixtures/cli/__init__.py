"""The command line: data in, report out."""
