"""The tiers: the kinds of memory that keep key-value tensors."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """A kind of memory for key-value tensors. Faster tiers come first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


TIERS = tuple(Tier)
"""All tiers, the fastest first. Lists with one number for each tier are in this order."""

RANK = {tier: rank for rank, tier in enumerate(TIERS)}
"""The place of each tier in TIERS."""
