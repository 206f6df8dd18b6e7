"""Proposes rows for `provision/catalog/data/`: what upstream has beyond the shipped catalog.

    ./run python -m tools.collect                    # a patch of the data files, on standard output
    ./run python -m tools.collect --write            # changes the files
    ./run python -m tools.collect --again 8          # reads the newest 8 releases again, too
    ./run python -m tools.collect --from registry --registry mirror.example

    provision.catalog.refresh.SOURCES + SOURCES --refresh--> rows --proposed--> data files --> patch

The sources of `catalog refresh` are read, and those here, which users do not need between releases:
cuDNN and NCCL (`libraries`), tags of base images (`images`), the newest driver of each branch and
the days of toolkits (`dates`). Each proposed row names its source. Standard error says what could
not be read, which rows upstream no longer lists, and what `tools.checks` says of the
proposed files. A person decides what is committed; `catalog measure` reads for which GPUs a new
build is compiled.
"""
