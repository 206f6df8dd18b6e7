"""The commands of the fleet: a file for each, what it prints, and what several share."""
