"""Put layers into built modules, and find them again."""

from .insertion import Insertion
from .plugged import Plugged
from .points import Point, resolve_points, split_points
from .status import (
    AttentionStatus,
    attention_status,
    inserted_layers,
    insertion_shapes,
    replaced_convs,
    replacements,
    switches,
)

__all__ = [
    'AttentionStatus', 'Insertion', 'Plugged', 'Point', 'attention_status', 'inserted_layers',
    'insertion_shapes', 'replaced_convs', 'replacements', 'resolve_points', 'split_points',
    'switches'
]
