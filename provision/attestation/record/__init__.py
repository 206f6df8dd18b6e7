"""The record of a verification: who proved which image on which kind of machine, signed.

An in-toto Statement in a DSSE envelope (docs/record.md). `statement`, `envelope` and `judge` are
pure; `store` reads and writes, and `keys` alone knows the cryptography.
"""
