"""The local cache of builds, and the downloads that fill it.

    lock --fetch--> wheels in the store, or used in place       (fetch, download, local)
    base, layers -> blobs by digest, and facts about them       (store, memo)

A file under its final name is complete: it is written under another name, hashed on the way, synced
and renamed. Nothing else is guaranteed to survive a power cut, and nothing else needs to.
"""
