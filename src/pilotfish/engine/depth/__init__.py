"""How many tokens to draft, and by which drafter. Plain Python: no arrays, no clock of its own."""

from pilotfish.engine.depth.acceptance import AcceptanceMemory
from pilotfish.engine.depth.auto import AutoDepth, DepthMemory, Kind
from pilotfish.engine.depth.costs import Costs
from pilotfish.engine.depth.lookup import AutoLookup, FixedLookup, LookupPolicy
from pilotfish.engine.depth.policy import DepthPolicy, FixedDepth, Kept, RoundSeen

__all__ = [
    "AcceptanceMemory", "AutoDepth", "AutoLookup", "Costs", "DepthMemory", "DepthPolicy", "FixedDepth", "FixedLookup",
    "Kept", "Kind", "LookupPolicy", "RoundSeen",
]  # fmt: skip
