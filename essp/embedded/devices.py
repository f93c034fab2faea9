"""Checks whether this machine has the devices that trainers in this process ask for.

If trainers run elsewhere, only the trainer's own machine can tell: there the job fails with the same message
(`choose_device`).
"""

from __future__ import annotations

from importlib.util import find_spec

from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec


def check_devices(spec: JobSpec) -> None:
    """Raises `ConfigError` for a missing device. Loads torch, which takes seconds, only if a job asks for a GPU."""
    wanted = {name: trainer.device for name, trainer in spec.trainers.items() if trainer.device == "cuda"}
    if not wanted or find_spec("torch") is None:
        return  # without torch no training is possible here; the command that tries it names the missing extra
    from essp_engine.loading.device import choose_device

    for name, device in wanted.items():
        try:
            choose_device(device, 0, deterministic=True)
        except ConfigError as error:
            raise error.within(f"trainers.{name}") from error
