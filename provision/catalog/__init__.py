"""The knowledge, as data: what is compatible with what. One file per upstream, one row per fact,
with its source.

`loading.load` reads the tables of `data/` into rows and raises CatalogError at the first value of
the wrong shape; those that a PyTorch plan does not need are read on first use. That rows are
consistent is checked before a release (`tools.checks`). The code in `provision.resolve` combines
rows into a decision; nothing combined is stored. `loading.current` merges the user's own copy over
them (`overlay`).
"""
