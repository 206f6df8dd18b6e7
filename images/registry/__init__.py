"""The client for container registries: resolves tags to digests, pulls and pushes images.

Every request takes the same path: `session` sends the credentials that the registry asks for
(`tokens`; `auth` reads docker's configuration), retries where that helps, and explains refusals
(`answers`). The HTTP client is `images.net`.

The data flow, and the modules:

    a name  --oci.reference-->  registry, repository, tag or digest
            --reader-------->  manifests and blobs, checked; from `mirrors` first
            --digest-------->  the digest of a tag, if it exists for the architecture
            --tags---------->  the tags of a repository
    layers  --target-------->  `upload` of each `body`, then the manifest; attaches `referrers`

`errors` lists the failures. A small request never takes longer than its time limit: a thread does
the work and is abandoned if necessary, because a DNS lookup or a credential helper cannot be
interrupted.
"""
