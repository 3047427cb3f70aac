"""Pictures of attention. matplotlib is imported when the first picture is drawn."""

import importlib
from typing import Any

_LAZY = {
    'AttentionMapError': '.attention_maps',
    'MapRecorder': '.attention_maps',
    'choose_layer': '.attention_maps',
    'select_distinct': '.attention_maps',
    'showable_layers': '.attention_maps',
    'draw_attention': '.attention_picture',
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name], __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
