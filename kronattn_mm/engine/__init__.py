"""Hooks for mmengine's runner."""

from .anneal_temperature import AnnealTemperature
from .attention_map_hook import AttentionMapHook
from .epoch_seed import EpochSeed
from .freeze_hook import FreezeHook
from .gate_statistics import GateStatistics
from .load_report import CheckLoadedKeysHook, check_loaded_keys
from .small_file_hook import SmallFileHook
from .status_hook import AttentionStatusHook
from .timeline_pictures import TimelinePictures
from .validation_pictures import ValidationPictures

__all__ = [
    'AnnealTemperature',
    'AttentionMapHook',
    'AttentionStatusHook',
    'CheckLoadedKeysHook',
    'EpochSeed',
    'FreezeHook',
    'GateStatistics',
    'SmallFileHook',
    'TimelinePictures',
    'ValidationPictures',
    'check_loaded_keys',
]
