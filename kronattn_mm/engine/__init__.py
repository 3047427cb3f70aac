"""Hooks for mmengine's runner."""

from .anneal_temperature import AnnealTemperature
from .attention_map_hook import AttentionMapHook
from .epoch_seed import EpochSeed
from .freeze_hook import FreezeHook
from .gate_statistics import GateStatistics
from .validation_pictures import ValidationPictures

__all__ = [
    'AnnealTemperature', 'AttentionMapHook', 'EpochSeed', 'FreezeHook', 'GateStatistics',
    'ValidationPictures'
]
