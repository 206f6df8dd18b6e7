"""The command of the doctor, and what the other commands ask it."""
