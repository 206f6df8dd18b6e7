"""The signed record of a verification: who tested which image on which kind of machine.

An in-toto Statement in a DSSE envelope (docs/record.md). `statement`, `envelope` and `verdict` are
pure; `store` reads and writes, and only `keys` has cryptography.
"""
