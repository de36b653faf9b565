"""mlx-lm, plain decoding. FORM: stored, bfloat16 or float32 (dequantized once, at load)."""

import json
import sys
import time

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import dequantize_model, load_model


def main() -> None:
    """Serve requests until standard input ends."""
    from pathlib import Path

    path, form = sys.argv[1:3]
    config = json.loads((Path(path) / "config.json").read_text())
    vocabulary = {"vocab_size": config.get("text_config", config).get("vocab_size", config.get("vocab_size"))}
    model, _ = load_model(Path(path), model_config=vocabulary)
    if form != "stored":
        model = dequantize_model(model) if "quantization" in config else model
        model.set_dtype(getattr(mx, form))
    mx.eval(model.parameters())
    for line in sys.stdin:
        request = json.loads(line)
        tokens, start = [], 0.0
        for token, _ in generate_step(mx.array(request["prompt"]), model, max_tokens=request["max_tokens"]):
            tokens.append(int(token))
            start = start or time.perf_counter()
        print(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - start}), flush=True)  # noqa: T201


main()
