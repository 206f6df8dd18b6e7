"""Builds a small Debian base with Python from Debian's packages, without Debian's tools.

It needs no registry, no root, and no apt or dpkg on the host, and runs nothing of the base: so any
user can build a base for aarch64 on x86_64. The data flow, and the modules:

    the host's apt sources  --mirrors------>  the suites of a release, current or as of a date
                            --download----->  their signed Releases (signature, release), their
                                              indexes (index), and the packages of the base
                            --dependencies->  the choice of these packages (versions)
                            --unpack------->  each package (deb) as a compressed part of a layer
                            --configure---->  what the packages' scripts would have written
                            --layer-------->  the layer, from these parts (tree)
                            --archive------>  an archive, which engines and builders read
                            --store-------->  <store>/bases, for reuse

`make` runs these steps, `host` reads this machine's mirror settings, `errors` lists the failures.
Imports go one way: `make` uses all; `layer` uses `configure` and `unpack`, which use `tree`, `deb`
and `index`; `download` uses the readers of what it downloads.

The build is reproducible: the same packages give the same bytes on every host, from any mirror.
Nothing else of the host or the date is in the image (names, addresses, logs, caches, byte code),
files are in a fixed order, and owners are numbers. A snapshot pins the packages. Without one a base
is rebuilt after some days, to get security updates.
"""
