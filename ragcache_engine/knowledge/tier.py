"""The places key-value tensors are kept in, as values."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Where tensors are. Faster tiers come first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


TIERS = tuple(Tier)
"""Nodes keep their numbers for each tier in lists, in this order."""

RANK = {tier: rank for rank, tier in enumerate(TIERS)}
