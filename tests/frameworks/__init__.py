"""The suite on real frameworks, on the CPU where there is no GPU."""
