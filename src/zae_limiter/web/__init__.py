"""HTTP: middleware for ASGI (`zae_limiter.web.asgi`) and WSGI (`zae_limiter.web.wsgi`), and what both are told.

FastAPI's dependency and decorator are in `zae_limiter.web.fastapi`.
"""

from .answers import Answer
from .credentials import SeveralKeysError
from .fields import Fields, Standing
from .identity import Identity
from .keys import by_api_key, by_header, by_ip, by_user
from .messages import MessageLimit
from .proxies import Proxies
from .request import Request
from .rules import Rule
from .tab import answer_of, lease_of

__all__ = [
    "Answer",
    "Fields",
    "Identity",
    "MessageLimit",
    "Proxies",
    "Request",
    "Rule",
    "SeveralKeysError",
    "Standing",
    "answer_of",
    "by_api_key",
    "by_header",
    "by_ip",
    "by_user",
    "lease_of",
]
