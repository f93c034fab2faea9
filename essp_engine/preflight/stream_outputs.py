"""What the streams of a job give for a clip. Errors of features name the stream: a job may use one feature twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_engine.features.declared import DeclaredFeature
from essp_engine.features.port import ArraySpec
from essp_engine.features.registry import frames_of, layout_of, output_of

Elsewhere = Mapping[str, DeclaredFeature] | None
"""Features whose code is in another image."""


def layouts_of(spec: JobSpec, declared: Elsewhere = None) -> dict[str, FeatureLayout]:
    """Stream -> how its values are read. Raises `ConfigError` for features that are not known."""
    found = {}
    for name, stream in spec.streams.items():
        with _named(name):
            found[name] = layout_of(stream.feature, declared)
    return found


def stream_output(spec: JobSpec, name: str, clip: ArraySpec, declared: Elsewhere = None) -> ArraySpec:
    """Shape and type of a stream's values for a clip. Raises `ConfigError`, also if the clip is too short."""
    stream = spec.streams[name]
    with _named(name):
        return output_of(stream.feature, stream.params, clip, declared, spec.clip.snippets)


def stream_frames(spec: JobSpec, name: str, declared: Elsewhere = None) -> int:
    """Frames that a clip needs for a stream. Raises `ConfigError` as `stream_output` does."""
    stream = spec.streams[name]
    with _named(name):
        return frames_of(stream.feature, stream.params, declared)


@contextmanager
def _named(stream: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"streams.{stream}: {error}") from error
