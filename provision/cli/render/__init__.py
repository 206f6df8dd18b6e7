"""Results for people: at most 80 columns, the answer first. Nothing here decides."""
