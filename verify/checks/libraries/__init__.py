"""Libraries: loaded versions and files, compilers, the packages beside the framework."""
