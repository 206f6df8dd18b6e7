"""`provision export ...`: files that run an image elsewhere, one module for each consumer."""
