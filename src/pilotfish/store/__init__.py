"""From a model's name to its checkpoint on disk, and from there to weights in memory."""
