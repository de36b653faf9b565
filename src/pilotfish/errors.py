"""Every error a user can meet.

    PilotfishError
    ├── OptionError          an option, prompt or combination of them that cannot be honoured
    │   ├── ContextOverflowError   a prompt that the context cannot hold
    │   └── CapabilityError        something that this model cannot do: tools, thinking, images
    ├── BusyError            more requests wait than may
    ├── ModelNotFoundError   no checkpoint at the path or under the name given
    ├── CheckpointError      a checkpoint that cannot be read: config, tensors, tokenizer
    ├── UnsupportedModelError    a model family that mlx-lm or pilotfish does not know
    ├── DrafterMismatchError     a drafter that was made for another target
    └── DraftingUnsupportedError drafting was asked of a model whose caches cannot roll back

Each message says what was got, what was expected and what to do. The command line prints it on one line.
"""

from __future__ import annotations


class PilotfishError(Exception):
    """Base of all errors that a user can cause or repair."""


class OptionError(PilotfishError, ValueError):
    """Raised before any work when an option or a prompt cannot be honoured."""


class ContextOverflowError(OptionError):
    """Raised when a prompt of `tokens` tokens leaves no room for an answer in a context of `context`."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(f"This model's maximum context length is {context} tokens; the prompt has {tokens} tokens")
        self.tokens, self.context = tokens, context


class CapabilityError(OptionError):
    """Raised when a request asks for something that the model cannot do."""


class BusyError(PilotfishError):
    """Raised when as many requests wait as may; trying again later helps."""


class ModelNotFoundError(PilotfishError, FileNotFoundError):
    """Raised when a model name or path leads to no checkpoint on this machine."""


class CheckpointError(PilotfishError):
    """Raised when a checkpoint's files are damaged, incomplete or hold tensors nobody knows."""


class UnsupportedModelError(PilotfishError):
    """Raised when a checkpoint's `model_type` is not supported."""


class DrafterMismatchError(PilotfishError):
    """Raised at load when a drafter does not fit the target: size, vocabulary, heads."""


class DraftingUnsupportedError(PilotfishError):
    """Raised when drafting is asked of a model whose caches cannot be rolled back."""
