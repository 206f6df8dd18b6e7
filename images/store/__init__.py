"""The local cache of builds, and the downloads that fill it.

    lock --fetch--> wheels in the store, or used in place       (fetch, download, local)
    base, layers -> blobs by digest, and facts about them       (store, memo)

A file under its final name is complete: it is written under another name, hashed on the way, synced
and renamed. Nothing else is guaranteed to survive a power cut, and nothing else needs to.
"""

from images.store.entries import store_directory
from images.store.errors import (
    CalledOffError,
    OfflineError,
    StoreUnusableError,
    in_units,
)
from images.store.fetch import Fetcher
from images.store.incoming import free_bytes
from images.store.store import Store, default_limit
from images.store.upkeep import Cleared, Storage, StoreCheck, StoreItem, Usage

__all__ = [
    "CalledOffError",
    "Cleared",
    "Fetcher",
    "OfflineError",
    "Storage",
    "Store",
    "StoreCheck",
    "StoreItem",
    "StoreUnusableError",
    "Usage",
    "default_limit",
    "free_bytes",
    "in_units",
    "store_directory",
]
