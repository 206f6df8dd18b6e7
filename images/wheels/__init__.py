"""What a wheel is, for all who read wheels: today, the directory of its zip."""
