"""Training: a falling loss, steps as in float64, mixed precision, several devices as one."""
