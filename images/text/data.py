"""Tables of data beside the modules that use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from os.path import dirname
from typing import Any


def data_table(module: str, name: str) -> Callable[[], Any]:
    """What returns a JSON file in the directory `data` beside a module (its `__file__`); it is read
    at the first call.
    """

    @cache
    def read() -> Any:  # noqa: ANN401  a table of any form
        with open(f"{dirname(module)}/data/{name}", encoding="utf-8") as file:  # noqa: PTH120, PTH123  slow import
            return json.load(file)

    return read
