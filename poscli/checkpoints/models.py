"""A checkpoint as a run: its configuration, its folder like that of a training, and the model that belongs to it."""

from __future__ import annotations
