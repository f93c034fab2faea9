"""The tokens that the API accepts at present: the one in ESSP_API_TOKEN_FILE may change while the master runs.

If the file cannot be read for a while, the last token counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from essp_common.errors import ConfigError
from essp_common.runtime.api_token import ApiToken
from essp_master.config import MasterSettings

log = logging.getLogger(__name__)

_AGAIN_S = 5.0
"""How long a token may be refused after it has been written, and accepted after it has been replaced."""


class Tokens:
    """Returns the present tokens when called."""

    def __init__(self, settings: MasterSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `ConfigError` if the token file contains none."""
        self._settings = settings
        self._clock = clock
        self._known = settings.tokens()
        self._read_s = clock()

    def __call__(self) -> Sequence[ApiToken]:
        if self._settings.api_token_file and self._clock() - self._read_s >= _AGAIN_S:
            self._read_s = self._clock()
            try:
                self._known = self._settings.tokens()
            except ConfigError as error:
                log.warning("the API keeps its token: %s", error)
        return self._known
