"""Test doubles that users can test with too: a scripted drafter, a counting device, a fake clock, tiny checkpoints."""

from __future__ import annotations

from pilotfish.testing.doubles import CountingDevice, FakeClock, ScriptedDrafter

__all__ = ["CountingDevice", "FakeClock", "ScriptedDrafter"]
