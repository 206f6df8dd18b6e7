"""Makes images without an engine: known bytes under known names, written in the order they need.

How data flows, and which module does what:

    wheels --layers--> layers that are written at the speed of copying   (images.layers)
    base   --base----> layers and a configuration that somebody made      (base)
    both   --assemble-> configuration, manifest, index                    (assemble, pure)
    all    --build---> a target: a directory, an archive, a registry

`model` holds the words of the OCI image specification, `sources` what a layer and a target are to
each other, `errors` how it can fail. Nothing here knows a wheel.

https://github.com/opencontainers/image-spec/blob/main/spec.md
"""
