"""Serving requests: checkpoints in memory, prompts to events. No HTTP here."""
