"""Reads and writes image formats without an engine.

    model       descriptors, platforms, media types: the specification's terms
    sources     the interfaces between layers, images and targets (protocols)
    reference   image references
    assemble    base and layers -> configuration, manifest, index (pure)
    layout, layout_reader, archive, archive_reader     images on disk
    image_reader, inflate, tarstream, blobfiles         their layers' bytes

Imports `images.net` (loopback addresses), `images.wheels` (a locked file), `images.text` and
`images.errors`.

https://github.com/opencontainers/image-spec/blob/main/spec.md
"""
