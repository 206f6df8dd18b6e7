"""Data: shared memory, limits and workers, and whether every sample arrives."""
