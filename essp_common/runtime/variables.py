"""The environment variables that ESSP reads, so that a misspelt one does not go unnoticed.

All processes of an installation may share an environment, but an image contains only the settings of its own services.
So the names of all settings are listed here; a test compares them with the classes (`config.py` of each service).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

PREFIX = "ESSP_"
_OF_SERVICES = """
    api_body_bytes api_connections api_hosts api_open api_patience_s api_requests_per_s api_token api_token_file
    api_tokens bus bus_password bus_user cache code drain_s history_s images lease log_format log_level
    loop_patience_s metrics_port mlflow namespace owner partitions poll_records pool_sizes pools queue_budget ranks
    ready_s release stall_s state store_patience_s stores stuck_s supervised takeover_s teams templates tenant
    tensorboard trace_share traces trial_servers url video_jobs video_jobs_release_s video_jobs_team wandb worker
    burst deterministic drained_exit fetch_processes fetches final_save_timeout_s local_trainers owner_check_s
    prefetch_batches rank_restarts rank_timeout_s report_interval_s save_retry_s start_warning_s views
    decoder_cache decoder_clip_bytes decoder_frame_pixels decoder_memory decoder_open_videos decoder_processes
    decoder_timeout_s decoder_units decoder_video_bytes
    features extractor_lanes batch_clips device aggregator_processes
"""
_OF_OTHERS = """
    server failpoint storm
    api_port decoder_limit demo_clips demo_epochs demo_videos job redis_limit redis_memory s3_password s3_port s3_user
    videos
"""
"""Variables of commands and tests, and of the compose file, which a shell may export."""
SETTINGS = frozenset(f"{PREFIX}{name.upper()}" for name in _OF_SERVICES.split())
KNOWN = SETTINGS | {f"{PREFIX}{name.upper()}" for name in _OF_OTHERS.split()}
_FOREIGN = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$|^ESSP_TEST_")
"""What Kubernetes sets for each service if the release is called essp, such as ESSP_MASTER_PORT_8080_TCP_ADDR."""


def misspelt(names: Iterable[str]) -> list[str]:
    """Return a sentence for each variable that looks like a setting but is not one."""
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in KNOWN)
    return [_told(name) for name in unknown if not _FOREIGN.search(name)]


def _told(name: str) -> str:
    near = get_close_matches(name, KNOWN, n=1, cutoff=0.75)
    return f"{name} is not a setting of ESSP, and has no effect" + (f"; did you mean {near[0]}?" if near else "")
