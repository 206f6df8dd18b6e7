"""One layer of many, with a table of contents: a node can start the image before it has pulled it.

Each file is compressed apart, a large one in chunks, and the table at the end says where each chunk
is. So a snapshotter fetches only what a program reads, and every engine unpacks the same bytes as
an ordinary layer. Two formats differ in the compression and in where the table is:

- zstd:chunked: https://github.com/containers/storage/blob/main/docs/containers-storage-zstd-chunked.md
- eStargz, of gzip: https://github.com/containerd/stargz-snapshotter/blob/main/docs/estargz.md

`layer` writes it from other layers, which `merging` makes one; `formats` has the two formats;
`table` has the rows of a table; `table_reader` reads and refuses foreign ones.
"""
