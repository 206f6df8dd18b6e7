"""Opens an image by its location or name, and writes a new one from a base and layers.

In: the name that a user gives an image; a base, layers and settings; a target. Out: an
`oci.sources.Image` to read, or the digest of the image that was written. How the data flows:

    a name  --opening--> an image of a layout, an archive, an engine, a registry
    a base  --base-----> its layers and its configuration, kept in the store
    layers  --build----> a target: a layout, an archive, a registry (`oci.assemble`: pure)

Imports the formats (`oci`), `registry` and `store`.
"""
