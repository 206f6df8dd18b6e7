"""Where checks compute: each framework's devices, and whether there is a GPU at all."""
