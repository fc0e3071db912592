"""The command that shows the ports of the host that lead to a pod: port."""

from __future__ import annotations

import click

from minit.base.errors import PodError
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.jsonoutput import format_option, json_text
from minit.cli.text.porttext import host_place, pod_place, port_json
from minit.stage0.pods.exposedports import ForwardedPort, forwarded_ports
from minit.stage0.pods.poddirectory import PodState, find_pod
from minit.stage0.pods.podstatus import read_pod_manifest


@click.command(cls=MinitCommand)
@format_option
@click.argument("uuid", metavar="UUID")
@click.argument("port", metavar="[PORT[/PROTOCOL]|NAME]", required=False)
@click.pass_obj
def port(invocation: Invocation, output_format: str | None, uuid: str, port: str | None) -> None:
    """
    \b
      minit port 2d381b2a
      minit port web 80/tcp

    """
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        if pod.state is not PodState.RUNNING:
            raise PodError(f'pod "{pod.uuid}" is {pod.state}: ports lead to running pods')
        ports = forwarded_ports(read_pod_manifest(pod))
    if port is not None:
        ports = tuple(each for each in ports if port in _words(each))
        if not ports:
            raise PodError(f'no port of the host leads to port "{port}" of the pod')
    if output_format is not None:
        invocation.say(json_text([port_json(each) for each in ports], output_format))
        return
    for each in ports:
        place = host_place(each)
        invocation.say(place if port is not None else f"{pod_place(each)} -> {place}")


def _words(each: ForwardedPort) -> tuple[str, ...]:
    """Return the words by which a port may be asked for."""
    number = str(each.pod_port)
    return each.name, f"{number}/{each.protocol}", *((number,) if each.protocol == "tcp" else ())
