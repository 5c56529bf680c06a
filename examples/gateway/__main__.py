"""``python -m examples.gateway``: serve the demo."""

from __future__ import annotations

import argparse

import uvicorn

from zae_limiter import RateLimiter

from .accounts import KEYS
from .app import create_app


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.gateway", description="An LLM gateway with limits.")
    parser.add_argument("--url", help="the store of the limits; else $ZAE_LIMITER_URL, else memory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    print(f"Keys to try: {', '.join(KEYS)}")
    # Left on, uvicorn itself would believe X-Forwarded-For from local peers; here RateLimitMiddleware decides alone.
    uvicorn.run(create_app(RateLimiter(options.url)), host=options.host, port=options.port, proxy_headers=False)


main()
