"""The version, as the distribution states it."""

VERSION = "0.1.0"
