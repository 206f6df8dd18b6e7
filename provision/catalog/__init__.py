"""The knowledge: what goes with what, as data. A file an upstream, a row a fact, with its source.

`loading.load` reads the tables of `data/` into rows and raises CatalogError at the first value of
the wrong shape; those that a PyTorch plan does not need are read when they are first asked for.
`check` holds how rows fit together. How rows are joined into a decision is code
(`provision.resolve`); nothing joined is stored. `loading.current` lays over them what the user's
own copy holds (`overlay`).
"""
