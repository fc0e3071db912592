"""Stands in for trio's DTLS endpoints, which need pyOpenSSL: a stage1 speaks neither."""


class DTLSChannel:
    """Never made: nothing in a stage1 opens an endpoint."""


class DTLSChannelStatistics:
    """Never made: nothing in a stage1 opens an endpoint."""


class DTLSEndpoint:
    """Never made: nothing in a stage1 opens an endpoint."""
