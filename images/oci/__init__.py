"""The formats of images: read and written, without an engine.

    model       descriptors, platforms, media types: the words of the specification
    sources     what a layer, an image and a target are to each other (protocols)
    reference   the names of images
    assemble    base and layers -> configuration, manifest, index (pure)
    layout, layout_reading, archive, archive_reading   images on a disk
    reading, inflate, tarstream, blobfiles              their layers' bytes

Imports `images.wheels` (the name of a locked file), `images.text` and `images.errors` alone.

https://github.com/opencontainers/image-spec/blob/main/spec.md
"""
