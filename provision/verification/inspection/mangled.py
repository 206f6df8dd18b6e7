"""Names of C++ for people: the nested name, without templates and parameters.

https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling
"""

from __future__ import annotations

import re

_MOST_PARTS = 32
_KIND = re.compile(r"_Z(TV|TT|TI|TS|GV)?(N[rVK]*[RO]?)?")
_KINDS = {
    "TV": "vtable for ",
    "TT": "VTT for ",
    "TI": "typeinfo for ",
    "TS": "typeinfo name for ",
    "GV": "guard variable for ",
}
_SOURCE_NAME = re.compile(r"(B?)([1-9]\d{0,3})")
_BEGINNINGS = {"St": "std", "Ss": "std::string"}
_OPERATORS = {
    "aS": "=", "cl": "()", "dv": "/", "eq": "==", "ge": ">=", "gt": ">", "ix": "[]", "le": "<=",
    "lS": "<<=", "ls": "<<", "lt": "<", "mI": "-=", "mi": "-", "ml": "*", "ne": "!=", "pL": "+=",
    "pl": "+", "rs": ">>", "ss": "<=>",
}  # fmt: skip


def readable(symbol: str) -> str:
    """A symbol as its source names it: "c10::cuda::SetDevice". What is not understood becomes
    "..."; a name that is not mangled stays as it is.
    """
    kind = _KIND.match(symbol)
    if kind is None:
        return symbol
    at, parts, is_nested = kind.end(), list[str](), kind[2] is not None
    while len(parts) < _MOST_PARTS:
        two = symbol[at : at + 2]
        if name := _SOURCE_NAME.match(symbol, at):
            at = name.end() + int(name[2])
            if at > len(symbol):
                return symbol
            if not name[1]:  # else a tag of its ABI, as in [abi:cxx11]
                parts.append(_unnamed(symbol[name.end() : at]))
            if not is_nested:
                break
        elif two in _BEGINNINGS and not parts:
            parts.append(_BEGINNINGS[two])
            at += 2
        elif parts and re.fullmatch(r"[CD][0-5]", two):  # constructors and destructors
            parts.append(("~" if two[0] == "D" else "") + parts[-1])
            at += 2
        elif two in _OPERATORS:
            parts.append(f"operator{_OPERATORS[two]}")
            at += 2
            if not is_nested:
                break
        elif two[:1] == "I" and parts:
            return _KINDS.get(kind[1], "") + "::".join(parts) + "<...>"
        else:
            if not two.startswith("E"):
                parts.append("...")
            break
    if parts in ([], ["..."]):
        return symbol
    return _KINDS.get(kind[1], "") + "::".join(parts)


def _unnamed(name: str) -> str:
    return "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name
