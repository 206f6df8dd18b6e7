"""An offline bundle: everything that `provision build` needs, in one file for a machine without a
network.

    lock, base, wheels, suite, catalog, tool --pack, tool--> bundlefile --reader--> a build

The file is a plain tar with one exact spelling. Its first entry, `bundle.json`, lists all others in
order, with their sizes and digests; so a reader computes every header, and refuses any other byte.
"""
