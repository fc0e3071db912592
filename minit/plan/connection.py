"""Settings of the apps of a pod by the networks, known once the networks exist."""

from __future__ import annotations

import os
from typing import TypeVar

from minit.base.errors import PlanError
from minit.base.value import replace
from minit.plan.appplan import AppPlan
from minit.plan.appspec import AppSpec
from minit.plan.life.appenvironment import with_metadata
from minit.plan.life.expansion import Addresses, expand
from minit.plan.networks.networkplan import Connection
from minit.plan.process import ProcessPlan
from minit.plan.root.etcfiles import resolv_conf

A = TypeVar("A", AppPlan, AppSpec)


def connect(apps: tuple[A, ...], connection: Connection, mds_token: str) -> tuple[A, ...]:
    """Return the apps with the name servers that the networks offer and the address of the metadata service."""
    if connection.resolv_conf is not None:
        text = os.fsencode(connection.resolv_conf)
        apps = tuple(_with_dns(app, text, yields=connection.is_host_dns) for app in apps)
    if mds_token:
        host = connection.host_address
        if host is None:
            raise PlanError("failed to setup network: no network has an address of the host, which --mds-token needs")
        apps = tuple(replace(app, process=_with_metadata(app.process, mds_token, host)) for app in apps)
    return apps


def _with_metadata(process: ProcessPlan, mds_token: str, host: str) -> ProcessPlan:
    return replace(process, environment=with_metadata(process.environment, mds_token, host))


def _with_dns(app: A, text: bytes, *, yields: bool) -> A:
    file = resolv_conf(text, yields=yields)
    if file.target in app.storage.hidden_files:
        return app
    return replace(app, storage=replace(app.storage, files=(*app.storage.files, file)))


def addresses_of(uuid: str, connection: Connection | None) -> Addresses:
    """Return the addresses of a pod by what its networks offer."""
    if connection is None:
        return Addresses(uuid=uuid)
    return Addresses(uuid=uuid, pod=connection.pod_addresses, host=connection.host_address)


def expand_texts(apps: tuple[A, ...], addresses: Addresses) -> tuple[A, ...]:
    """Return the apps with the texts replaced that stand for addresses of the pod."""
    return tuple(_expand(app, addresses) if app.process.expansion else app for app in apps)


def _expand(app: A, addresses: Addresses) -> A:
    environment = [(name, expand(value, app.process.expansion, addresses)) for name, value in app.process.environment]
    arguments = [expand(word, app.process.expansion, addresses) for word in app.process.arguments]
    process = replace(app.process, environment=tuple(environment), arguments=tuple(arguments))
    return replace(app, process=process)
