"""HTTP as everything here speaks it: one client, below registries, wheels, mirrors and indexes.

In: addresses. Out: heads and pieces of bytes.

    http         sends a request and follows its redirects; bodies go both ways in pieces
    connections  the proxies and certificates of this host, and waits that end
    address      whose an address is, what of it is shown, and where a redirect may lead
    logins       a netrc's, and how one is shown
    patience     how long is waited, and when a server is asked again
    transfer     one file by a thread that may be left behind, from any byte on

Imports `images.text` and `images.errors` alone.
"""
