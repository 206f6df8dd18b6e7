"""A file for each command: its options, its work, what it prints, its examples."""
