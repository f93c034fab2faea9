"""Opening kafka-python's clients, and what their errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient

from essp_common.errors import ConfigError, PermanentError, Unavailable

_MISCONFIGURED = (
    kafka_errors.AuthorizationError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedVersionError,
    kafka_errors.KafkaConfigurationError,
)


class Undelivered(Unavailable):
    """Messages that were published before are lost for good."""


@contextmanager
def mapped(action: str) -> Iterator[None]:
    """kafka-python's errors as ESSP's."""
    try:
        yield
    except kafka_errors.MessageSizeTooLargeError as error:
        raise PermanentError(f"{action}: {error}") from error
    except _MISCONFIGURED as error:
        raise ConfigError(
            f"{action}: {type(error).__name__}: {error}; check ESSP_BUS and the broker's rights"
        ) from error
    except (kafka_errors.KafkaError, OSError) as error:
        raise Unavailable(f"{action}: {type(error).__name__}: {error}") from error


def connected(make: Callable[..., Any], **settings: Any) -> Any:
    """A client of kafka-python. One that cannot connect leaves nothing behind: by itself it would leave a thread."""
    opened: list[KafkaNetClient] = []

    def open_client(**config: Any) -> KafkaNetClient:
        # Without a warning for each 0.1 s in which its loop was not served: on a busy machine there are many.
        opened.append(KafkaNetClient(**config, slow_task_threshold_secs=0))
        return opened[-1]

    try:
        return make(kafka_client=open_client, **settings)
    except BaseException:
        for client in opened:
            client.close()
        raise
