"""Whether this machine has the devices that the trainers of a job ask for, when they are to train in this process.

Elsewhere only the trainer's own machine can tell: there the job fails with the same words (`choose_device`).
"""

from __future__ import annotations

from importlib.util import find_spec

from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec


def check_devices(spec: JobSpec) -> None:
    """Raises `ConfigError` for a device that is not here. Torch, which takes seconds, is loaded only for a GPU."""
    wanted = {name: trainer.device for name, trainer in spec.trainers.items() if trainer.device == "cuda"}
    if not wanted or find_spec("torch") is None:
        return  # without torch nothing can be trained here; the command that tries says which extra is missing
    from essp_engine.loading.device import choose_device

    for name, device in wanted.items():
        try:
            choose_device(device, 0, deterministic=True)
        except ConfigError as error:
            raise error.within(f"trainers.{name}") from error
