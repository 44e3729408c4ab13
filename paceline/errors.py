"""The error tree. Each class has one gRPC status, so that a client sees the same kind everywhere.

PacelineError                     INTERNAL
├── InvalidArgumentError          INVALID_ARGUMENT     a request field is wrong
├── ResourceExhaustedError        RESOURCE_EXHAUSTED   no room now; trying again later may work
├── UnavailableError              UNAVAILABLE          a worker is gone; trying again may work
├── SessionLostError              ABORTED              a session's state is gone for good
├── UnauthenticatedError          UNAUTHENTICATED      missing or wrong token
├── DeadlineExceededError         DEADLINE_EXCEEDED
├── CancelledError                CANCELLED
└── StartupError                  FAILED_PRECONDITION  the process cannot serve as configured
    ├── ConfigError                                    a setting is wrong; names its key
    ├── ModelLoadError                                 a model cannot be loaded as asked
    ├── VocabularyMismatchError                        drafter and verifier speak different ids
    └── PlacementError                                 the cluster lacks what was asked for
"""


class PacelineError(Exception):
    """Base of every error that Paceline raises on purpose."""

    code = "INTERNAL"


class InvalidArgumentError(PacelineError):
    """A field of a request is wrong. The message starts with the field's name."""

    code = "INVALID_ARGUMENT"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class ResourceExhaustedError(PacelineError):
    """No room now; the same request may succeed later."""

    code = "RESOURCE_EXHAUSTED"


class UnavailableError(PacelineError):
    """A worker cannot be reached; the same request may succeed later."""

    code = "UNAVAILABLE"


class SessionLostError(PacelineError):
    """A session's state is gone and cannot be rebuilt."""

    code = "ABORTED"


class UnauthenticatedError(PacelineError):
    """The caller has no valid token."""

    code = "UNAUTHENTICATED"


class DeadlineExceededError(PacelineError):
    """The caller's deadline passed."""

    code = "DEADLINE_EXCEEDED"


class CancelledError(PacelineError):
    """The work was cancelled by its caller or by a shutdown."""

    code = "CANCELLED"


class StartupError(PacelineError):
    """The process cannot serve as configured."""

    code = "FAILED_PRECONDITION"


class ConfigError(StartupError):
    """A setting is wrong. The message names its key."""


class ModelLoadError(StartupError):
    """A model cannot be loaded as asked."""


class VocabularyMismatchError(StartupError):
    """Drafter and verifier give different meanings to token ids."""


class PlacementError(StartupError):
    """The cluster lacks the resources that were asked for."""


# Statuses travel in HTTP/2 trailers, which peers limit to 8 KiB in all.
_MAX_MESSAGE_CHARS = 1500


def describe_error(error: BaseException) -> tuple[str, str]:
    """Code name and message for a client; internals of an unexpected exception stay out of it."""
    if isinstance(error, PacelineError):
        message = str(error) or type(error).__name__
        if len(message) > _MAX_MESSAGE_CHARS:
            message = message[:_MAX_MESSAGE_CHARS] + " …"
        return error.code, message
    return PacelineError.code, f"unexpected {type(error).__name__}; see the server's log"
