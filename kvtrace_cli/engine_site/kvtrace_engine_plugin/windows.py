"""Which KV blocks of a group the engine takes back before the request ends: those behind a window.

A spec is known by the names of its classes, as versions add subclasses of their own.
"""

from __future__ import annotations

from typing import Any

# A full-attention spec may name a window too: it then says what layers read, and nothing is freed.
_KEEPING = ("FullAttentionSpec", "CrossAttentionSpec", "EncoderOnlyAttentionSpec", "MambaSpec")
_FREEING = {
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "attention_chunk_size",
}
# Frees what lies between the prompt, however long that is, and a window.
_UNLIKE = ("RSWASpec",)


def describe_window(spec: Any) -> dict[str, Any]:
    """Return a group's fields of the layout that say when its KV blocks are free again.

    Empty if never. A group of layers of several sizes has what they have in common.

    Args:
        spec: the group's KV cache spec.
    """
    each = getattr(spec, "kv_cache_specs", None)
    if each:
        first, *others = [describe_window(one) for one in each.values()]
        return first if all(other == first for other in others) else {"unknown_window": True}
    names = [one.__name__ for one in type(spec).__mro__]
    if not any(name in names for name in _UNLIKE):
        for name, attribute in _FREEING.items():
            if name in names:
                return {attribute: int(getattr(spec, attribute))}
        if any(name in names for name in _KEEPING):
            return {}
    return {"unknown_window": True}
