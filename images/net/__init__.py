"""The HTTP client that registries, wheels, mirrors and indexes share.

In: addresses. Out: response heads and bodies in pieces.

    http         sends a request and follows its redirects; streams bodies both ways
    connections  the proxies and certificates of this host, and timeouts
    address      the host of an address, what may be shown of it, and where a redirect may lead
    logins       logins from a netrc, and the header that sends one
    retries      timeouts, and when to try a request again
    transfer     downloads one file from any offset, in a thread that may be abandoned

Imports only `images.text` and `images.errors`.
"""
