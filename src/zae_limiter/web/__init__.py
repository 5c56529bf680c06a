"""HTTP: middleware for ASGI (`zae_limiter.web.asgi`) and WSGI (`zae_limiter.web.wsgi`), and their settings.

FastAPI's dependency and decorator are in `zae_limiter.web.fastapi`.
"""

from .answers import Answer
from .asgi import MessageLimit
from .fields import Fields
from .keys import Identity, SeveralKeysError, by_api_key, by_header, by_ip, by_user
from .middleware import answer_of
from .profiles import LimitView
from .proxies import Proxies
from .request import Request
from .request_leases import lease_of
from .rules import Rule

__all__ = [
    "Answer",
    "Fields",
    "Identity",
    "LimitView",
    "MessageLimit",
    "Proxies",
    "Request",
    "Rule",
    "SeveralKeysError",
    "answer_of",
    "by_api_key",
    "by_header",
    "by_ip",
    "by_user",
    "lease_of",
]
