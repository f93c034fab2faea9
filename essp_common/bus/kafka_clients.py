"""Opens kafka-python's clients, and maps their errors."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors
from kafka.cluster import ClusterMetadata
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.structs import MemberState

from essp_common.bus.port import MessageTooLarge
from essp_common.errors import ConfigError, EsspError, FlowUnavailable, NotFound, PermanentError
from essp_common.runtime.certificates import refusal

log = logging.getLogger(__name__)

_MISCONFIGURED = (kafka_errors.UnsupportedVersionError, kafka_errors.KafkaConfigurationError)
_REFUSED_LOGINS = (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError)
_DENIALS = (kafka_errors.AuthorizationError, *_REFUSED_LOGINS)
OnLogin = Callable[[BaseException | None], None]
_DENIED_WITHIN = "AuthorizationFailedError"
"""kafka-python wraps a denial in this error when a producer requests its id."""
_DENIED_RETRY_S = 5.0
HIDDEN = kafka_errors.TopicAuthorizationFailedError
"""The answer for topics that a user may not see, when they are requested by name."""
TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
"""Errors that every attempt to publish a message would meet."""
_ACCESS = (
    "check ESSP_BUS_USER, its password and what the broker lets this user do (`essp setup --acls` shows what it has "
    "to); a new password is taken at once from the bus URL's password_file, from ESSP_BUS_PASSWORD at the next start"
)


def no_topic(topic: str) -> NotFound:
    """Return the error for a topic that the broker does not show. It hides topics that a user may not describe."""
    return NotFound(
        f"there is no topic {topic}; a master makes it when it starts, or the user that this process logs in as may "
        "not see it: `essp setup --acls` shows the rights that it needs"
    )


class TopicsGone(FlowUnavailable):
    """Topics were deleted while they were being read."""


def check_topics(consumer: KafkaConsumer, topics: Sequence[str]) -> None:
    """Raise `TopicsGone` if, by the broker's last answer, one of these topics is missing. Sends nothing: the consumer
    refreshes its metadata itself, without reporting this."""
    if gone := missing_topics(consumer._cluster, topics):
        raise TopicsGone(
            f"the broker has no topic {', '.join(gone)} any more; {MADE_AGAIN}, and then it is read from its beginning"
        )


MADE_AGAIN = "`essp setup` makes it again"


def missing_topics(metadata: ClusterMetadata, topics: Iterable[str]) -> list[str]:
    """Return the topics that a client does not find in the broker's last description."""
    return [topic for topic in topics if metadata.partitions_for_topic(topic) is None]


@dataclass(frozen=True, slots=True)
class Layout:
    """A topic as the broker last described it."""

    id: object
    """Another one if the topic was deleted and made again; None from brokers that give it no id."""
    partitions: frozenset[int]


def layout_of(consumer: KafkaConsumer, topic: str) -> Layout | None:
    """Return a topic's layout by the consumer's metadata, which it refreshes itself; None if the topic is gone."""
    cluster = consumer._cluster
    numbers = cluster.partitions_for_topic(topic)
    return Layout(cluster.topic_id(topic), frozenset(numbers)) if numbers else None


def on_reset(consumer: KafkaConsumer, notice: Callable[[TopicPartition, int], None]) -> None:
    """Have `notice` called with a partition and an offset whenever that was the next to be read, and is not there.

    kafka-python then reads on from the earliest record, and only logs it.
    """
    state = consumer._subscription
    reset = state.request_offset_reset

    def request_offset_reset(slot: TopicPartition, *strategy: Any) -> None:
        if (position := state.assignment[slot].position) is not None:
            notice(slot, position.offset)
        reset(slot, *strategy)

    state.request_offset_reset = request_offset_reset


def position_of(consumer: KafkaConsumer, slot: TopicPartition) -> int | None:
    """Return the offset of the next record to be read; None if the consumer does not know it, or has lost the
    partition. Sends nothing."""
    state = consumer._subscription.assignment.get(slot)
    position = None if state is None else state.position
    return None if position is None else int(position.offset)


_HANDSHAKE_S = 5.0
_BOOTSTRAP = "bootstrap"
"""kafka-python's name for its first connection."""
_DIRECT = "essp-direct://"
"""Passed as a proxy URL to kafka-python: direct connections, by `_Connecting`."""


def _is_news(record: logging.LogRecord) -> bool:
    """Filter out what a kafka-python client logs as errors while it is being closed: its requests are cancelled, and
    the socket that its loop would read is gone. Also a missing topic, which it reports ten times a second, and
    `check_topics` once in a while."""
    cancelled = isinstance(record.args, tuple) and any(isinstance(a, kafka_errors.Cancelled) for a in record.args)
    error = record.exc_info[1] if record.exc_info else None
    gone = isinstance(error, AttributeError) and (error.obj, error.name) == (None, "recv")
    missing = isinstance(record.msg, str) and record.msg.endswith("not found in cluster metadata")
    return not (cancelled or gone or missing)


for _name in ("kafka.cluster", "kafka.net.transport"):
    logging.getLogger(_name).addFilter(_is_news)


class _Once(logging.Filter):
    """Lets the first of equal messages pass. A login without TLS is the user's choice, and clients log in again and
    again."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message in self._seen:
            return False
        self._seen.add(message)
        return True


for _name in ("kafka.net.sasl.plain", "kafka.net.sasl.scram"):
    logging.getLogger(_name).addFilter(_Once())


class Undelivered(FlowUnavailable):
    """Messages published earlier are lost for good."""


class Unexpected(FlowUnavailable):
    """kafka-python has raised an undocumented error: an answer was not Kafka's, or kafka-python has a defect. The
    client may be in any state, and is not used again."""


class NoPartition(PermanentError, ValueError):
    """The topic has no partition with this number."""


class Denied(FlowUnavailable):
    """A password or a permission is missing."""

    def __init__(self, call: str, error: BaseException) -> None:
        """`call`: what was refused."""
        super().__init__(f"{call}: {error}; {_ACCESS}", _DENIED_RETRY_S)
        self.call = call


def denial(call: str, error: BaseException) -> Denied | None:
    """Return the denial in an error of kafka-python; None if it is not about a missing password or permission."""
    within = isinstance(error, kafka_errors.KafkaError) and _DENIED_WITHIN in str(error)
    return Denied(call, error) if within or isinstance(error, _DENIALS) else None


def _said(error: BaseException) -> str:
    """Return kafka-python's message, with the name of the error once, and a remedy if no broker answers."""
    kind = type(error).__name__
    text = str(error).removeprefix(f"{kind}: ").removeprefix(kind).strip()
    if _BOOTSTRAP in text.lower():
        return f"no broker answers ({text or kind}); start one, or correct ESSP_BUS (`essp doctor` checks it)"
    return f"{kind}: {text}" if text else kind


@contextmanager
def mapped(action: str) -> Iterator[None]:
    """Convert any error of kafka-python into one of ESSP's."""
    try:
        yield
    except EsspError:
        raise
    except TOO_LARGE as error:
        raise MessageTooLarge(f"{action}: {error}") from error
    except kafka_errors.InvalidSessionTimeoutError as error:
        raise ConfigError(
            f"{action}: the broker does not take ESSP_BUS's session_timeout_ms; set it to between the broker's "
            "group.min.session.timeout.ms and group.max.session.timeout.ms (6000 and 1800000 by default)",
            code="range",
        ) from error
    except _MISCONFIGURED as error:
        raise ConfigError(f"{action}: {type(error).__name__}: {error}; check ESSP_BUS", code="refused") from error
    except (kafka_errors.KafkaError, OSError) as error:
        denied = denial(action, error)
        raise denied or FlowUnavailable(f"{action}: {_said(error)}") from error
    except Exception as error:
        log.exception("%s: unexpected error of the Kafka client", action)
        raise Unexpected(f"{action}: {type(error).__name__}: {error}") from error


def connected(make: Callable[..., Any], on_login: OnLogin | None = None, **settings: Any) -> Any:
    """Create a client of kafka-python. If it cannot connect, nothing is left behind; kafka-python itself would leave a
    thread.

    `on_login` is called after each login with its error, or None. If kafka-python reports after a while that it could
    not connect, this raises the error of the last login instead.
    """
    opened: list[_NetClient] = []

    def open_client(**config: Any) -> _NetClient:
        # Without a warning for each 0.1 s in which its loop was not served: on a busy machine there are many.
        opened.append(_NetClient(on_login, **config | {"proxy_url": _DIRECT, "slow_task_threshold_secs": 0}))
        return opened[-1]

    try:
        return make(kafka_client=open_client, **settings)
    except BaseException as error:
        for client in opened:
            client.close()
        if isinstance(error, kafka_errors.KafkaError):  # not for Ctrl-C
            for client in opened:
                if client.refused is not None:
                    raise client.refused from error
            if refused := _refused(settings):
                raise FlowUnavailable(refused) from error
        raise


class _Connecting(KafkaNetSocket):  # type: ignore[misc]
    """Closes a socket whose connection fails. kafka-python leaves that to the garbage collector."""

    SCHEMES = (urlsplit(_DIRECT).scheme,)

    async def connect(
        self, net: Any, addrinfo: Any, socket_options: Any = (), timeout_at: float | None = None
    ) -> socket.socket:
        family, kind, protocol, _, address = addrinfo
        opened: socket.socket = self.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            for option in socket_options:
                opened.setsockopt(*option)
            await self.sock_connect(net, opened, address, timeout_at=timeout_at)
            return opened
        except BaseException:  # including that the client is closed in the meantime
            opened.close()
            raise


def _before_the_end(
    receive: Callable[[], tuple[bytes, BaseException | None]],
) -> tuple[bytes, BaseException | None]:
    """Return the received data; the next read reports the end of the connection. kafka-python drops data that arrives
    together with the end, such as the answer to a refused login."""
    received, end = receive()
    return received, None if received else end


def _understood(receive: Callable[[bytes], None], received: bytes) -> None:
    """Process received data. Unreadable data ends the connection, as kafka-python does for some kinds of invalid data;
    with others, its reader would die, and the connection would be waited for in vain."""
    try:
        receive(received)
    except kafka_errors.KafkaProtocolError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise kafka_errors.KafkaProtocolError(f"an answer that is not Kafka's ({what})") from error


class _NetClient(KafkaNetClient):  # type: ignore[misc]
    """Closes every socket, and reports logins. kafka-python leaves sockets with pending data open; it only logs that a
    login was refused, and retries at once."""

    def __init__(self, on_login: OnLogin | None, **config: Any) -> None:
        super().__init__(**config)
        self.refused: BaseException | None = None
        """The error of the last login."""
        self._on_login = on_login
        self._password: Callable[[], str] | None = config.get("sasl_plain_password")
        manager = self._manager
        connect = manager.get_connection
        build = manager._build_transport

        async def build_transport(*arguments: Any, **options: Any) -> Any:
            transport = await build(*arguments, **options)
            transport._sock_recv = partial(_before_the_end, transport._sock_recv)
            return transport

        manager._build_transport = build_transport

        def get_connection(node: Any, *arguments: Any, reset_backoff_on_connect: bool = True, **options: Any) -> Any:
            known = manager._conns.get(node)
            if known is None and not manager.connection_delay(node):
                self._prepare_login(node)
            # kafka-python would also reset its backoff when the login is refused.
            connection = connect(node, *arguments, reset_backoff_on_connect=False, **options)
            if connection is not known:
                connection.data_received = partial(_understood, connection.data_received)
                connection.init_future.add_both(partial(self._began, node, reset_backoff_on_connect))
            return connection

        manager.get_connection = get_connection

    def _prepare_login(self, node: Any) -> None:
        """Update the password, which may have changed."""
        if self._password is None:
            return
        try:
            self._manager.config["sasl_plain_password"] = self._password()
        except ConfigError as error:
            self._began(node, False, kafka_errors.SaslAuthenticationFailedError(str(error)))
            raise kafka_errors.NodeNotReadyError(node) from error

    def _began(self, node: Any, resets: bool, outcome: object) -> None:
        """A connection is established, or an error says why not."""
        if isinstance(outcome, _REFUSED_LOGINS):
            self.refused = self._explained(outcome)
            self._manager.update_backoff(node)
        elif isinstance(outcome, BaseException):
            return
        else:
            self.refused = None
            if resets:
                self._manager.reset_backoff(node)
        if self._on_login is not None:
            self._on_login(self.refused)

    def _explained(self, refused: BaseException) -> BaseException:
        if not isinstance(refused, kafka_errors.UnsupportedSaslMechanismError):
            return refused
        mechanism = self._manager.config["sasl_mechanism"]
        explained: BaseException = kafka_errors.UnsupportedSaslMechanismError(
            f"the broker does not take sasl={mechanism} of the bus URL; write one that it is set up for"
        )
        return explained

    def close(self, node_id: Any = None) -> None:
        if node_id is not None or self._net._closed:
            super().close(node_id)
            return
        self._manager.close()
        self._net.stop()
        self._net.drain()  # lets pending tasks register for their sockets
        waited_for = [key.fileobj for key in self._net._selector.get_map().values()]
        super().close()
        for opened in waited_for:
            opened.close()


def notice_rebalance(consumer: KafkaConsumer, timeout_ms: int) -> None:
    """Ask the coordinator now whether the members of the group must rejoin; then `has_to_join` reports it.

    kafka-python asks only with each heartbeat. If the coordinator does not answer, nothing happens.
    """
    coordinator = consumer._coordinator

    async def ask() -> None:
        heartbeat = coordinator._manager.call_soon(coordinator._send_heartbeat_request)
        await coordinator._manager.wait_for(heartbeat, timeout_ms)

    if coordinator.state is not MemberState.STABLE:
        return
    with suppress(kafka_errors.KafkaError):
        coordinator._net.run(ask)


def has_to_join(consumer: KafkaConsumer) -> bool:
    """Whether the group is rebalancing, and this member has not rejoined yet."""
    return bool(consumer._coordinator.need_rejoin())


def leave(consumer: KafkaConsumer, timeout_ms: int, *, goodbye: bool = True) -> None:
    """Close a consumer without a commit. Raises kafka-python's errors, but nothing of the consumer is running by then.

    Without a `goodbye`, the group notices when the member's session times out.
    """
    try:
        if not goodbye:
            consumer._coordinator.reset_generation()  # kafka-python says goodbye only to a group that it belongs to
        consumer.close(autocommit=False, timeout_ms=timeout_ms)
    finally:
        consumer._client.close()  # including its thread, which kafka-python leaves running if the goodbye fails


def _refused(settings: dict[str, Any]) -> str | None:
    """Return what is wrong with the brokers' certificates; kafka-python does not report it."""
    if not settings["security_protocol"].endswith("SSL"):
        return None
    context = ssl.create_default_context(cafile=settings["ssl_cafile"])
    if settings["ssl_certfile"]:
        context.load_cert_chain(settings["ssl_certfile"], settings["ssl_keyfile"])
    servers = (urlsplit(f"//{server}") for server in settings["bootstrap_servers"])
    found = (refusal(server.hostname or "", server.port or 9092, context, _HANDSHAKE_S) for server in servers)
    return next(filter(None, found), None)
