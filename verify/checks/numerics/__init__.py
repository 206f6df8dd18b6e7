"""Numerics: products, convolutions, attention, compiled code against float64; repeated runs."""
