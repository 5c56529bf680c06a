"""TLS settings that are wrong: files that cannot be used, and handshakes that no retry can mend."""

from __future__ import annotations

import ssl

from ..core.errors import ConfigurationError

_PASSING = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors of the connection rather than of its settings."""
_SERVER_FAILED = ("INTERNAL_ERROR", "USER_CANCELLED", "BAD_RECORD_MAC", "DECRYPTION_FAILED")
"""Reasons that are the other side's trouble, or the network's."""


def check_files(files: dict[str, str | None]) -> None:
    """Check files in PEM form, by the options that name them: ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``.

    Raise `ConfigurationError` with the option and the file if one is missing or is not what it should be.
    """
    for option, path in files.items():
        try:
            if path is not None:
                open(path, "rb").close()
        except (OSError, ValueError) as error:
            raise _unusable(option, path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted, certificate, key = (files.get(f"ssl_{name}") for name in ("ca_certs", "certfile", "keyfile"))
    if trusted is not None:
        try:
            context.load_verify_locations(trusted)
        except OSError as error:
            raise _unusable("ssl_ca_certs", trusted, "has no certificate in PEM form") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:
            where = "" if key is None else f" with ssl_keyfile = {key!r}"
            reason = f"is not a certificate{where} and its key in PEM form, without a password: {error}"
            raise _unusable("ssl_certfile", certificate, reason) from error


def find_wrong_setting(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error behind a failed connection if only other settings can mend it, else None."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, _PASSING):
            return None if any(reason in str(error) for reason in _SERVER_FAILED) else error
        error = error.__cause__ or error.__context__
    return None


def is_tls(answer: bytes) -> bool:
    """Return whether these are the first bytes of a server that speaks TLS: of a handshake or an alert."""
    return answer[:2] in (b"\x16\x03", b"\x15\x03")


def first_bytes(host: str) -> bytes:
    """Return the bytes with which a TLS client greets a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=host).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError  # a handshake needs an answer


def _unusable(option: str, path: str | None, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{option} = {path!r} {reason}", option=option)
