"""Quantize an exported pair with mlx-lm's own tools and put it where the package ships it.

    python package.py --from DIR --to ../../src/pilotfish/data/nano [--bits 4]

Runs in pilotfish's environment, not in the one with PyTorch.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from mlx_lm.utils import quantize_model, save_config, save_model

from pilotfish.engine.drafters.gemma4_assistant import AssistantArgs, AssistantModel
from pilotfish.store import checkpoint

GROUP_SIZE = 64
COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--bits", type=int, default=4)
    args = parser.parse_args()
    target, config = checkpoint.load_target(args.source, None)
    assistant = checkpoint.load_assistant(args.source / "assistant", (AssistantModel, AssistantArgs), None)
    pairs = [
        (args.source, args.to, target, config),
        (
            args.source / "assistant",
            args.to / "assistant",
            assistant,
            checkpoint.read_config(args.source / "assistant"),
        ),
    ]
    for source, to, model, its_config in pairs:
        to.mkdir(parents=True, exist_ok=True)
        quantized, new_config = quantize_model(model, its_config, GROUP_SIZE, args.bits)
        save_model(to, quantized)
        save_config(new_config, to / "config.json")
        (to / "model.safetensors.index.json").unlink(missing_ok=True)  # one shard needs no index
        for name in COPIED:
            if (source / name).is_file():
                shutil.copy(source / name, to / name)


if __name__ == "__main__":
    main()
