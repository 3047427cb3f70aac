"""Put layers into built modules, and find them again."""

from .fusing import fused
from .insertion import Insertion
from .plugged import Plugged, plug
from .points import Point, resolve_points, split_points
from .removal import unplug
from .status import (
    AttentionStatus,
    attention_status,
    inserted_layers,
    insertion_shapes,
    replaced_convs,
    replacements,
    switches,
)
from .switching import attention_disabled, attention_scaled

__all__ = [
    'AttentionStatus',
    'Insertion',
    'Plugged',
    'Point',
    'attention_disabled',
    'attention_scaled',
    'attention_status',
    'fused',
    'inserted_layers',
    'insertion_shapes',
    'plug',
    'replaced_convs',
    'replacements',
    'resolve_points',
    'split_points',
    'switches',
    'unplug',
]
