"""Hooks for mmengine's runner."""

from .attention_map_hook import AttentionMapHook

__all__ = ['AttentionMapHook']
