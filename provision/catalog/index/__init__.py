"""Reads package indexes: pages, and the METADATA of wheels without downloading these.

    default_index --> Address --> Index.pages --> Page of PageFiles --linux_wheels--> LinuxWheels
                                  Index.metadata: IndexMetadata, what a wheel requires

`fetch` asks the servers, `pages` and `wheels` read their answers. The refresh of the catalog, the
sources of packages without wheels, and the maintainers' tools read indexes by this.
"""
