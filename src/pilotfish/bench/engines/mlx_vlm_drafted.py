"""mlx-vlm with its Gemma 4 assistant drafter. FORM: stored, bfloat16 or float32 (dequantized once, at load)."""

import json
import sys
import time

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_vlm.generate.ar import generate_step
from mlx_vlm.speculative.drafters import load_drafter
from mlx_vlm.utils import load_model


def dequantize(model: nn.Module) -> None:
    """Replace quantized linears and embeddings by dense ones."""
    dense = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            continue
        weight = mx.dequantize(module.weight, module.scales, module.get("biases"), module.group_size, module.bits,
                               mode=module.mode)  # fmt: skip
        made = nn.Linear(1, 1, bias=False) if isinstance(module, nn.QuantizedLinear) else nn.Embedding(1, 1)
        made.weight = weight
        dense.append((name, made))
    model.update_modules(tree_unflatten(dense))


def main() -> None:
    """Serve requests until standard input ends."""
    from pathlib import Path

    path, form, drafter_path = sys.argv[1:4]
    model, loaded = load_model(Path(path)), load_drafter(drafter_path)
    drafter, kind = loaded if isinstance(loaded, tuple) else (loaded, "mtp")
    if form != "stored":
        for part in (model, drafter):
            dequantize(part)
            part.set_dtype(getattr(mx, form))
    mx.eval(model.parameters(), drafter.parameters())
    for line in sys.stdin:
        request = json.loads(line)
        tokens, start = [], 0.0
        steps = generate_step(
            mx.array([request["prompt"]]), model, None, None, max_tokens=request["max_tokens"], temperature=0.0,
            draft_model=drafter, draft_kind=kind, draft_block_size=5,
        )  # fmt: skip
        for token, _ in steps:
            tokens.append(int(token))
            start = start or time.perf_counter()
        print(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - start}), flush=True)  # noqa: T201


main()
