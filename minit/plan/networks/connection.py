"""Settings that the apps of a pod get from its networks, once these are there."""

from __future__ import annotations

import os
from typing import TypeVar

from minit.errors import PlanError
from minit.plan.appplan import AppPlan
from minit.plan.life.appenvironment import with_metadata
from minit.plan.networks.networkplan import Connection
from minit.plan.root.files import resolv_conf
from minit.value import replace

A = TypeVar("A", bound=AppPlan)


def connect(apps: tuple[A, ...], connection: Connection, mds_token: str) -> tuple[A, ...]:
    """Return the apps with the name servers that the networks offer and the address of the metadata service."""
    if connection.resolv_conf is not None:
        text = os.fsencode(connection.resolv_conf)
        yields = connection.is_host_dns
        apps = tuple(replace(app, files=(*app.files, resolv_conf(app.name, text, yields=yields))) for app in apps)
    if mds_token:
        host = connection.host_address
        if host is None:
            raise PlanError("failed to setup network: no network has an address of the host, which --mds-token needs")
        apps = tuple(replace(app, environment=with_metadata(app.environment, mds_token, host)) for app in apps)
    return apps
