"""The group `network`: networks for pods, made, shown and removed."""

from __future__ import annotations

from typing import Any

import click

from minit.base.harmless import harmless
from minit.base.moment import parse_moment
from minit.cli.commands.podcommands import for_each
from minit.cli.commands.storagecommands import confirm
from minit.cli.flags.appoptions import parse_pair
from minit.cli.flags.filters import Filter, Listed, Subject, chosen, filter_option, fits
from minit.cli.flags.sharedoptions import no_legend_option
from minit.cli.flagwords import FlagError
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, format_option, json_text
from minit.manifest.creatednetwork import Network, NetworkDriver, NetworkRequest
from minit.pods.networks import create_network, prune_networks, remove_network
from minit.stage0.networks import Member, find_network, list_networks, network_members


@click.command(cls=MinitCommand)
@click.argument("name", metavar="NETWORK")
@click.option(
    "-d",
    "--driver",
    type=click.Choice([driver.value for driver in NetworkDriver]),
    default=NetworkDriver.BRIDGE.value,
    help="The kind of the network.  [default: bridge]",
)
@click.option("--subnet", "subnets", metavar="ADDRESS/LENGTH", multiple=True, help="A subnet; repeatable.")
@click.option(
    "--gateway",
    "gateways",
    metavar="ADDRESS",
    multiple=True,
    help="The gateway in a subnet, by default the first address.",
)
@click.option("--ip-range", "ranges", metavar="ADDRESS/LENGTH", multiple=True, help="The part of a subnet for pods.")
@click.option("--ipv6", "has_ipv6", is_flag=True, help="A subnet of IPv6, too; a free local one without --subnet.")
@click.option("--internal", "is_internal", is_flag=True, help="No way from the network to others, nor back.")
@click.option(
    "-o", "--opt", "options", metavar="NAME=VALUE", multiple=True, help="An option of the driver; repeatable."
)
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="A label; repeatable.")
@click.pass_obj
def create(invocation: Invocation, /, options: tuple[str, ...], labels: tuple[str, ...], **settings: Any) -> None:
    """
    Pods join by --net=NETWORK, and find each other by name while they run. Without --subnet a bridge gets a subnet that
    neither the host nor another network has.

    \b
      minit network create front
      minit network create --subnet=10.1.2.0/24 --internal back
      minit network create --driver=macvlan --opt=parent=eth0 --subnet=192.0.2.0/24 office
      minit run --net=front --net=back web.aci

    """
    invocation.become_root()
    settings["driver"] = NetworkDriver(settings["driver"])
    request = NetworkRequest(options=_pairs("--opt", options), labels=_pairs("--label", labels), **settings)
    invocation.say(create_network(invocation.caller, request).name)


@click.command("ls", cls=MinitCommand)
@click.option("-q", "--quiet", is_flag=True, help="Print the names alone.")
@filter_option(Subject.NETWORKS, "-f")
@no_legend_option
@format_option
@click.pass_obj
def list_configured(
    invocation: Invocation, quiet: bool, filters: tuple[Filter, ...], no_legend: bool, output_format: str | None
) -> None:
    """
    The networks default and default-restricted are the stage1 image's, and in the list only if a file replaces them.

    \b
      minit network ls
      minit network ls --filter=driver=bridge --filter=dangling=true
      minit network ls --format=json-pretty

    """
    found = list_networks(invocation.local_config, invocation.note)
    members = {} if quiet and not filters else network_members(invocation.data, invocation.note)
    found = chosen(filters, found, lambda network: _listed(network, is_dangling=network.name not in members))
    if quiet:
        for network in found:
            invocation.say(harmless(network.name))
        return
    if output_format is not None:
        invocation.say(json_text([_document(each, members.get(each.name, [])) for each in found], output_format))
        return
    rows: list[tuple[str, ...]] = [] if no_legend else [("NAME", "DRIVER", "SUBNETS", "PODS", "FILE")]
    for network in found:
        subnets = ",".join(subnet for subnet, _ in network.subnets) or "-"
        pods = str(len(members.get(network.name, ())))
        rows.append((*map(harmless, (network.name, network.driver, subnets)), pods, harmless(network.path)))
    invocation.say(align(rows), end="")


@click.command(cls=MinitCommand)
@click.argument("names", metavar="NETWORK...", nargs=-1, required=True)
@format_option
@click.pass_obj
def inspect(invocation: Invocation, names: tuple[str, ...], output_format: str | None) -> None:
    """
    \b
      minit network inspect front
      minit network inspect --format=json front back

    """
    members = network_members(invocation.data, invocation.note)
    found = [find_network(invocation.local_config, name, invocation.note) for name in names]
    documents = [_document(network, members.get(network.name, [])) for network in found]
    invocation.say(json_text(documents, output_format or "json-pretty"))


@click.command("rm", cls=MinitCommand)
@click.argument("names", metavar="NETWORK...", nargs=-1, required=True)
@click.pass_obj
def remove_created(invocation: Invocation, names: tuple[str, ...]) -> None:
    """
    The network of a running pod stays, and so does a network that was not made by minit network create.

    \b
      minit network rm front back

    """
    invocation.become_root()

    def remove_one(name: str) -> None:
        remove_network(invocation.caller, name)
        invocation.say(name)

    for_each(invocation, names, remove_one, "failed to remove one or more networks")


@click.command("prune", cls=MinitCommand)
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@filter_option(Subject.UNNEEDED)
@click.pass_obj
def prune_created(invocation: Invocation, force: bool, filters: tuple[Filter, ...]) -> None:
    """
    \b
      minit network prune --force
      minit network prune --filter=label=of=shop

    """
    invocation.become_root()
    which = "the created networks that fit, and" if filters else "all created networks"
    confirm(f"Remove {which} that no pod has?", force=force)
    for name in prune_networks(
        invocation.caller, lambda network: not fits(filters, _listed(network, is_dangling=True))
    ):
        invocation.say(name)


def _listed(network: Network, *, is_dangling: bool) -> Listed:
    return Listed(
        names=(network.name,),
        labels=network.labels,
        created_ns=parse_moment(network.created, 0) if network.created else None,
        driver=network.driver,
        is_dangling=is_dangling,
    )


def _pairs(flag: str, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(parse_pair(flag, text) for text in texts)
    except FlagError as error:
        raise click.UsageError(str(error)) from error


def _document(network: Network, members: list[Member]) -> dict[str, object]:
    return {
        "name": network.name,
        "driver": network.driver,
        "subnets": [{"subnet": subnet, "gateway": gateway} for subnet, gateway in network.subnets],
        "link": network.link,
        "internal": network.is_internal,
        "created": network.created or None,
        "options": dict(network.options),
        "labels": dict(network.labels),
        "path": network.path,
        "pods": [
            {"uuid": each.uuid, "name": each.name, "running": each.is_running, "addresses": list(each.addresses)}
            for each in members
        ],
    }
