"""Decode heads for mmsegmentation."""
