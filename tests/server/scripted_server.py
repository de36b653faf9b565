"""A real server whose model answers from a script: scripted_server.py PORT CHECKPOINT MODELS."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import uvicorn

from pilotfish.config import settings
from pilotfish.runtime.models import Models
from pilotfish.runtime.service import Service
from pilotfish.server.app import build
from pilotfish.store.library import Library, Manifest, now
from pilotfish.testing.scripted import scripted_loader

WHOLE_FILE = "Here is the file.\n\ndouble.py\n```\ndef double(n):\n    return 2 * n\n```\n"


def script(prompt: str) -> str:
    """An answer by what the prompt holds."""
    asked = prompt.rsplit("<|turn>user\n", 1)[-1]
    thought = "<|channel>thought\nLet me {}.\n<channel|>" if "<|think|>" in prompt else ""
    if "boom" in asked:
        raise RuntimeError("the script fails")
    if "slow" in asked:
        time.sleep(float(re.search(r"slow (\d+)", asked).group(1)))
    if result := re.findall(r"<\|tool_response>response:(\w+)\{value:<\|\"\|>(.*?)<\|\"\|>\}", asked, re.DOTALL):
        return thought.format("read") + f"{result[-1][0]} says: {result[-1][1]}."
    if "weather" in asked and "<|tool>" in prompt:
        call = '<|tool_call>call:get_weather{{city:<|"|>{}<|"|>,days:2,units:{{metric:true}}}}<tool_call|>'
        cities = ["Paris", 'Rome {x}, "y"'] if "both" in asked else ["Paris"]
        return thought.format("look") + "Looking." + "".join(call.format(c) for c in cities)
    if "broken call" in asked:
        return "Well: <|tool_call>call:get_weather{city:<tool_call|>"
    if "edit" in asked or "double.py" in asked:
        return WHOLE_FILE
    if echo := re.search(r"echo: (.*?)<turn\|>", asked, re.DOTALL):
        return echo.group(1)
    if "system?" in asked:
        return prompt.split("<|turn>user")[0]
    return thought.format("greet") + "Hello from the script."


def main() -> None:
    """Serve until killed."""
    port, checkpoint, models = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    chosen = replace(settings(), port=port, models=models, max_queue=8)
    library = Library(models)
    library.put(Manifest("scripted:latest", "nano", created=now()))
    service = Service(chosen, Models(library, chosen, loader=scripted_loader(checkpoint, script)))
    uvicorn.run(build(chosen, service), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
