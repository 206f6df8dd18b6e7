"""What builds keep on this machine, and how wheels get there.

    lock --fetch--> wheels in the store, or where they lie     (fetch, download, local)
    base, layers -> blobs by digest, and what is known of them (store, memo)

A file under its final name is whole: it is written under another, hashed as it comes, synced and
renamed. Nothing else is promised to survive a power cut, and nothing else is needed.
"""

from images.store.errors import (
    CalledOffError,
    OfflineError,
    StoreFullError,
    StoreUnusableError,
    in_units,
)
from images.store.fetch import Fetcher
from images.store.incoming import free_bytes
from images.store.shelves import store_directory
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
    "StoreFullError",
    "StoreItem",
    "StoreUnusableError",
    "Usage",
    "default_limit",
    "free_bytes",
    "in_units",
    "store_directory",
]
