"""The commands: options in, values to the packages below, their results printed.

Nothing imports it but `__main__`.
"""
