"""Settings of a process: where its servers are. Read once, in `main`; nothing else reads the environment.

Each setting is an environment variable with the prefix `ESSP_` (`ESSP_BUS=kafka://broker:9092`); a list is JSON, or its
entries separated by commas. Command line flags take precedence over the environment. An invalid value raises
`ConfigError` with the variable's name.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, get_origin

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from essp_common.errors import ConfigError
from essp_common.runtime.addresses import checked_address
from essp_common.runtime.ids import RESERVED
from essp_common.runtime.login import Login
from essp_common.runtime.logs import LogFormat
from essp_common.topics import DATA_PARTITIONS, MOST_PARTITIONS
from essp_common.validation import requirement

Address = Annotated[str, AfterValidator(checked_address)]


def _checked_tenant(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name} is a name of ESSP's own; choose another")
    return name


Tenant = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?)?$"), AfterValidator(_checked_tenant)]
Package = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]


_BETWEEN, _BETWEEN_URLS = re.compile(","), re.compile(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")


class _Environment(EnvSettingsSource):
    """The environment. Lists are JSON, or entries separated by commas: `file:///data,s3://bucket`. A comma within a URL
    belongs to the URL."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        text = str(value).strip(" ,\t\n")
        if get_origin(field.annotation) is not tuple or text.startswith(("[", "{", '"')):
            return super().decode_complex_value(field_name, field, value)
        parts = (_BETWEEN_URLS if "://" in text else _BETWEEN).split(text)
        return [part for part in map(str.strip, parts) if part]


class Settings(BaseSettings):
    """The settings of every service."""

    model_config = SettingsConfigDict(env_prefix="ESSP_", extra="ignore", frozen=True)

    bus: Address = Field("memory://", repr=False)
    """`memory://` (one process), `kafka://host:port[,host:port]`, or `kafka+ssl://...?ca=FILE&sasl=SCRAM-SHA-512`."""
    bus_user: str = ""
    """The user name of this process at Kafka, if the URL asks for `sasl`."""
    bus_password: SecretStr = SecretStr("")
    """Its password, if it does not change; `password_file=FILE` in the URL names a file with a password that may
    change."""
    cache: Address = Field("memory://", repr=False)
    """`memory://?bytes=256MiB` (one process), `shm://NAME?bytes=4GiB` (one machine), `redis://host:port/0`,
    `redis+cluster://host:port`; with TLS `rediss://...`. `?password_file=FILE`: the password, which may change."""
    tenant: Tenant = ""
    """Prefix of this installation's topics, consumer groups and cache keys (up to 40 of a-z, 0-9 and -), so that
    several installations can share Kafka and Redis without interfering. Empty: no prefix. See docs/tenants.md."""
    partitions: int = Field(DATA_PARTITIONS, ge=1, le=MOST_PARTITIONS)
    """Partitions of the topics of seeds, clips and features: the most workers of a pool, and ranks of a trainer, that
    can work at once. The same for all processes. `essp setup` adds partitions while ESSP runs. See docs/pools.md."""
    stores: tuple[str, ...] = Field(("file:///",), repr=False)
    """Roots under which videos are read and results written: `file:///dir`, `s3://bucket?endpoint=http://host:port`;
    to read from, also `gs://bucket`, `az://container`, `hdfs://host:port`, `https://host` and others of fsspec."""
    store_patience_s: float = Field(600.0, ge=0, le=86_400)
    """How long work waits for a store that does not answer, in seconds, with a warning at each try: a clip in a
    decoder, a video in `essp.stream` and `essp.predict`, the opening of an `essp.Loader`, and the building and checking
    of catalogs and records. Then it fails. 0: it fails at once."""
    code: tuple[Package, ...] = ()
    """Packages, or modules of them, from which jobs may name networks and losses by path (`our_package.nets:TINY`).
    Their code then runs in trainers and predictors for everyone who may start a job. Empty: none. See docs/networks.md.
    """
    worker: str = ""
    """This process's name in messages and logs (default: host name, process id, and four random digits that make it
    unique)."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    log_format: LogFormat = "auto"
    """`text`, on stderr; `json`, one object per line, on stdout; `auto`: text at a terminal, elsewhere JSON."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """Port of `/metrics`, `/livez` and `/readyz` of a worker (0: none)."""
    traces: str = Field("", repr=False, pattern=r"^(https?://.+)?$")
    """Collector of OpenTelemetry traces, OTLP over HTTP: `http://host:4318` (empty: none). See docs/tracing.md."""
    trace_share: float = Field(0.01, ge=0, le=1)
    """Share of the clips for which traces are sent."""
    supervised: bool = False
    """Leave when stdin closes: the process that started this one is gone."""
    drain_s: float = Field(30.0, ge=0, le=86_400)
    """After SIGTERM: how long a worker may take to finish its current work."""
    stuck_s: float = Field(3600.0, gt=0)
    """A worker that spends this long on one message hangs: it leaves, and other workers do its work."""

    @property
    def bus_login(self) -> Login:
        """User and password for the bus."""
        return Login(self.bus_user, self.bus_password.get_secret_value())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except SettingsError as error:
            how = "a list is JSON, or its entries with commas between them, as in ESSP_STORES=file:///data,s3://bucket"
            raise ConfigError(f"{error}: {how}", code="unreadable") from None
        except ValidationError as error:
            # Neither the values nor the error itself, which contains them: one may be a token.
            wrong = [f"{_variable(*e['loc'])}: {requirement(e)}" for e in error.errors()]
            raise ConfigError("settings: " + "; ".join(wrong)) from None


def _variable(name: int | str, *within: int | str) -> str:
    """The variable of a setting, with the part of its value that an error is about."""
    return f"ESSP_{name}".upper() + "".join(
        f", entry {part + 1}" if isinstance(part, int) else f", {part}" for part in within
    )
