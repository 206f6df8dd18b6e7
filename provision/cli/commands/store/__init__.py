"""`provision store ...`: show, check and shrink the store."""
