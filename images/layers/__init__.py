"""Makes layers: from wheels, by copying their compressed data, and from custom files.

    for source in wheel_sources(wheels, python="3.11", framework=("torch",), own=(), ...):
        unpacked = yield from source.stream(known=None)

The data flow, and the modules:

    wheels   --order-------> groups, one for each layer, the lowest first
    a file   --wheel_file--> its members, checked against the zip's directory
    members  --install-----> files as pip would install them (with `scripts`, `record`, `unneeded`)
    files    --transcode---> the layer, by `tar` and `gzip`

`cut` makes the same layer with the GPU code of some GPUs alone, `zstd` any layer by another
compressor.

`own`, `toolkit`, `bytecode` and others make layers of files that are in no wheel, with
`tar.file_layer`. Layers are reproducible: the clock, the user, the umask and external compressors
do not influence their bytes.
"""
