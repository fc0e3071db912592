"""The codes of a plugin's errors (CNI, "Error"); the last two are the reference plugins' own."""

from __future__ import annotations

INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIGURATION = 7
INVALID_NAMESPACE = 8
NOT_AVAILABLE = 50  # answered to STATUS alone: no ADD would succeed
ANY_OTHER = 999
