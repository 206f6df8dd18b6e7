"""`python -m provision`."""

from provision.cli import run

run()
