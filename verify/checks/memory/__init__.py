"""Memory: what is free, whether it keeps what is written, leaks, running out, batch sizes."""
