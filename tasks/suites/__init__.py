"""Suite files that ship with the harness."""
