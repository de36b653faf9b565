"""Filter the downloaded sources, train the tokenizer and write token files.

    python prepare.py --raw DIR --out DIR

Leaves `tokenizer.json`, `train.bin` and `heldout_<language>.bin` (uint16 token ids) and `data.json` (what was kept).
The split into training and held-out data is by file and depends on the file's text alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB = 4096
BYTES_PER_LANGUAGE = 18_000_000
TOKENIZER_BYTES = 4_000_000
HELD_OUT_SHARE = 0.015
CHAT_SHARE = 0.30
SUFFIXES = {
    ".py": "python", ".go": "go", ".rs": "rust", ".java": "java",
    ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript",
    ".h": "cpp", ".hpp": "cpp", ".cc": "cpp", ".cpp": "cpp", ".ipp": "cpp", ".cxx": "cpp",
    ".rst": "prose", ".md": "prose",
}  # fmt: skip
GENERATED = re.compile(
    r"(^|/)(dist|build|locale|locales|i18n|min|umd|esm|bundle|bundles|testdata|fixtures?|vendor|node_modules|unicode"
    r"|exercism[^/]*)(/|$)|\.min\.|_tables?\.|tables\.go|lib2to3/tests|idlelib/help"
)
# Published Gemma 4 special tokens keep their published ids; the rest of 0-127 stays unused.
SPECIAL = {
    0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>",
    49: "<tool_call|>", 50: "<|tool_response>", 51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>",
    100: "<|channel>", 101: "<channel|>", 105: "<|turn>", 106: "<turn|>",
}  # fmt: skip
RESERVED = 128


def keep(text: str) -> bool:
    """Whether a file reads like something a person wrote: no tables, no minified or foreign-alphabet text."""
    if not 200 <= len(text) <= 60_000:
        return False
    lines = text.splitlines()
    if len(text) / len(lines) > 70 or max(map(len, lines)) > 400:
        return False
    if sum(c.isdigit() for c in text) > 0.12 * len(text) or sum(c > "\x7f" for c in text) > 0.02 * len(text):
        return False
    return "DO NOT EDIT" not in text[:500] and "@generated" not in text[:500]


def without_licence(text: str) -> str:
    """Drop a leading comment that only states the licence."""
    head = re.match(r"\s*(?:/\*.*?\*/|(?:(?://|#)[^\n]*\n)+)\s*", text, re.DOTALL)
    if head and re.search(r"copyright|licen[sc]e", head.group(), re.IGNORECASE):
        return text[head.end() :]
    return text


def documents(raw: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (language, file name, text) for every file worth keeping, duplicates dropped."""
    seen: set[bytes] = set()
    for path in sorted(p for p in raw.rglob("*") if p.is_file()):
        language = SUFFIXES.get(path.suffix)
        if language is None or GENERATED.search(path.relative_to(raw).as_posix()):
            continue
        text = without_licence(path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n"))
        digest = hashlib.sha256("".join(text.split())[:3000].encode()).digest()
        if keep(text) and digest not in seen:
            seen.add(digest)
            yield language, path.name, text


def held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) < HELD_OUT_SHARE * 2**32


def train_tokenizer(samples: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [SPECIAL.get(i, f"<unused{i}>") for i in range(RESERVED)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(samples, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 2)]
    )
    return tokenizer


def as_chat(language: str, name: str, text: str, rng: random.Random) -> str:
    """A user turn that holds the start of a file, a model turn that holds the whole file."""
    lines = text.splitlines(keepends=True)
    start = "".join(lines[: rng.randint(1, min(12, max(1, len(lines) // 2)))])
    ask = rng.choice([f"Finish this {language} file: {name}\n```{language}\n{start}```", start.rstrip("\n")])
    return f"<|turn>user\n{ask}<turn|>\n<|turn>model\n```{language}\n{text.rstrip()}\n```<turn|>\n"


def encode(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    ids: list[int] = []
    for start in range(0, len(texts), 512):
        for item in tokenizer.encode_batch(texts[start : start + 512]):
            ids.extend(item.ids)
            if item.ids[-1] != 106:
                ids.append(1)
    return np.array(ids, dtype=np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    found = list(documents(args.raw))
    rng.shuffle(found)
    kept: dict[str, list[tuple[str, str]]] = {}
    size: dict[str, int] = {}
    for language, name, text in found:
        if size.get(language, 0) < BYTES_PER_LANGUAGE:
            kept.setdefault(language, []).append((name, text))
            size[language] = size.get(language, 0) + len(text)
    samples = []
    for items in kept.values():
        budget = TOKENIZER_BYTES
        for _, text in items:
            if budget > 0 and not held_out(text):
                samples.append(text)
                budget -= len(text)
    tokenizer = train_tokenizer(samples)
    tokenizer.save(str(args.out / "tokenizer.json"))
    train, report = [], {}
    for language, items in kept.items():
        test = [t for _, t in items if held_out(t)]
        encode(tokenizer, test).tofile(args.out / f"heldout_{language}.bin")
        for name, text in (i for i in items if not held_out(i[1])):
            chat = language != "prose" and rng.random() < CHAT_SHARE
            train.append(as_chat(language, name, text, rng) if chat else text)
        report[language] = {"megabytes": round(size[language] / 1e6, 1), "files": len(items), "held_out": len(test)}
    rng.shuffle(train)
    ids = encode(tokenizer, train)
    ids.tofile(args.out / "train.bin")
    report["tokens"] = len(ids)
    (args.out / "data.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
