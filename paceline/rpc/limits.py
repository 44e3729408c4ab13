"""Transport limits, the same on both ends of every channel, and the largest message they carry."""

from __future__ import annotations

from paceline.config import GrpcConfig
from paceline.errors import ConfigError

Options = list[tuple[str, int]]

# A block's fixed fields, its token ids and the batch around it, generously.
_BLOCK_OVERHEAD = 1024
_BYTES_PER_PROB = 4
_BYTES_PER_ID = 4

# A lost worker is tried again within seconds, not minutes.
_INITIAL_BACKOFF_MS = 500
_MAX_BACKOFF_MS = 5_000
_CONNECT_TIMEOUT_MS = 5_000


def channel_options(limits: GrpcConfig) -> Options:
    """Options of a caller's channel."""
    return [
        *_message_limits(limits),
        *_keepalive(limits),
        # Channels to one address share nothing: each sees its own connection break.
        ("grpc.use_local_subchannel_pool", 1),
        # Services talk to each other directly; a proxy of the environment is not for them.
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", _INITIAL_BACKOFF_MS),
        ("grpc.max_reconnect_backoff_ms", _MAX_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
    ]


def server_options(limits: GrpcConfig) -> Options:
    """Options of a server. A port in use is an error, never shared between two servers."""
    return [
        *_message_limits(limits),
        *_keepalive(limits),
        ("grpc.so_reuseport", 0),
        # Callers ping at our own rate, also while no call is active: never answer with GOAWAY.
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(limits.keepalive_s) // 2),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def largest_block_bytes(*, num_speculative_tokens: int, draft_top_k: int, vocab_size: int) -> int:
    """Upper bound in bytes of a message with one draft block; `draft_top_k` 0 is dense."""
    if draft_top_k == 0:
        row_bytes = vocab_size * _BYTES_PER_PROB
    else:
        row_bytes = min(draft_top_k, vocab_size) * (_BYTES_PER_PROB + _BYTES_PER_ID)
    return num_speculative_tokens * row_bytes + _BLOCK_OVERHEAD


def check_message_limit(
    *, num_speculative_tokens: int, draft_top_k: int, vocab_size: int, limits: GrpcConfig
) -> None:
    """Raise `ConfigError` naming the keys when the largest draft block fits no message."""
    needed = largest_block_bytes(
        num_speculative_tokens=num_speculative_tokens,
        draft_top_k=draft_top_k,
        vocab_size=vocab_size,
    )
    if needed > limits.max_message_bytes:
        raise ConfigError(
            f"grpc.max_message_bytes: {limits.max_message_bytes} is too small for a draft block of"
            f" up to {needed} bytes (orchestrator.speculation.num_speculative_tokens"
            f" {num_speculative_tokens}, orchestrator.speculation.draft_top_k {draft_top_k},"
            f" vocabulary {vocab_size})"
        )


def _message_limits(limits: GrpcConfig) -> Options:
    return [
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_receive_message_length", limits.max_message_bytes),
    ]


def _keepalive(limits: GrpcConfig) -> Options:
    return [
        ("grpc.keepalive_time_ms", _ms(limits.keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(limits.keepalive_timeout_s)),
        # A peer that hangs but whose kernel still takes data falls under this one (default 60 s).
        ("grpc.http2.ping_timeout_ms", _ms(limits.keepalive_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
