"""Images opened and written: a place or a name becomes an image, a base and layers become another.

In: what a person calls an image; a base, layers and settings; a target. Out: an `oci.sources.Image`
to read, or the digest of the image that was written. How the data flows:

    a name  --opening--> an image of a layout, an archive, an engine, a registry
    a base  --base-----> its layers and its configuration, kept in the store
    layers  --build----> a target: a layout, an archive, a registry (`oci.assemble`: pure)

Imports the formats (`oci`), `registry` and `store`.
"""
