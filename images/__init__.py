"""Makes: turns a lock into a container image, and looks inside images."""
