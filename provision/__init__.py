"""Decides: host facts, request and catalog in; plan and lock out."""
