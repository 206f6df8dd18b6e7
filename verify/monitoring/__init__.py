"""The parts of `verify monitor`: samples, their recording, the summary and the live view."""
