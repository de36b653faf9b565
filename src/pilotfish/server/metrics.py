"""Prometheus figures, read from the service when they are asked for."""

from __future__ import annotations

import mlx.core as mx
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pilotfish.runtime.service import Service

router = APIRouter(tags=["health"])

COUNTS = {
    "requests": "Requests that decode.", "failed": "Requests that ended with an error.",
    "cancelled": "Requests whose client left.", "prompt_tokens": "Tokens of prompts.",
    "cached_tokens": "Tokens of prompts that an earlier request had computed.", "tokens": "Tokens delivered.",
    "rounds": "Decoding rounds.", "drafted": "Tokens drafted.", "accepted": "Drafts accepted.",
    "decode_seconds": "Seconds spent decoding.",
}  # fmt: skip
FIRST_TOKEN = Histogram(
    "pilotfish_time_to_first_token_seconds", "From arrival to the first token.", registry=None,
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)  # fmt: skip


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """All figures in Prometheus' text format."""
    service: Service = request.app.state.service
    registry = CollectorRegistry()
    for name, meaning in COUNTS.items():
        Counter(f"pilotfish_{name}", meaning, registry=registry).inc(getattr(service.totals, name))
    prefixes = service.models.prefixes
    gauges = {
        "depth": ("Drafts a round, on average.", service.totals.drafted / max(1, service.totals.rounds)),
        "tokens_per_second": (
            "Of decoding, on average.",
            service.totals.tokens / max(1e-9, service.totals.decode_seconds),
        ),
        "queue_waiting": ("Requests that wait.", service.worker.waiting),
        "running": ("Requests that run.", int(service.worker.busy)),
        "models_loaded": ("Models in memory.", len(service.models.residents)),
        "prefix_hits": ("Prompts that began with a kept sequence.", prefixes.hits),
        "prefix_misses": ("Prompts that did not.", prefixes.misses),
        "prefix_bytes": ("Bytes of kept sequences.", prefixes.nbytes),
        "memory_bytes": ("Bytes that MLX uses.", mx.get_active_memory()),
        "memory_peak_bytes": ("The most it used.", mx.get_peak_memory()),
    }
    for name, (meaning, value) in gauges.items():
        Gauge(f"pilotfish_{name}", meaning, registry=registry).set(value)
    registry.register(FIRST_TOKEN)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """Whether the server answers."""
    return {"status": "ok"}
