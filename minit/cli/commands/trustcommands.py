"""The group `trust`: the keys that may sign images."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from minit.base.errors import StoreError
from minit.base.harmless import harmless
from minit.cli.commands.podcommands import for_each
from minit.cli.flags.sharedoptions import no_legend_option
from minit.cli.flagwords import FlagError, split_words
from minit.cli.grammar import MinitCommand, MinitGroup, flag_table
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, format_option, json_text
from minit.pods.images import key_places
from minit.stage0.images.trustedkeys import (
    PublicKey,
    check_prefix,
    is_for,
    key_files,
    read_public_keys,
    remove_key,
    store_key,
    usable_keys,
)

_DOWNLOADS = ("http://", "https://")

_prefix_option = click.option(
    "--prefix", metavar="NAME", help="For the images NAME and NAME/..., by the names in their manifests."
)
_root_option = click.option("--root", is_flag=True, help="For all images.")


class _TrustGroup(MinitGroup):
    """The group, whose own words are rkt's: `trust --prefix=NAME KEY` adds a key."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the word `add` before the words of rkt."""
        flags = flag_table(add.get_params(ctx))
        try:
            found, operands = split_words(args, flags)
        except FlagError:  # of another command of the group, or wrong, which the command says
            return super().parse_args(ctx, args)
        is_own = bool(operands) and self.get_command(ctx, operands[0]) is not None
        is_add = not is_own and (bool(operands) or any(name in _ADD_FLAGS for name, _ in found))
        return super().parse_args(ctx, ["add", *args] if is_add and not ctx.resilient_parsing else args)


@click.command("add", cls=MinitCommand)
@_prefix_option
@_root_option
@click.option("--skip-fingerprint-review", is_flag=True, help="Trust the key without asking.")
@click.option("--insecure-allow-http", is_flag=True, expose_value=False, help="Accepted for rkt's sake; not read.")
@click.argument("keys", metavar="KEY...", nargs=-1, type=click.Path())
@click.pass_obj
def add(
    invocation: Invocation, prefix: str | None, root: bool, skip_fingerprint_review: bool, keys: tuple[str, ...]
) -> None:
    """
    Trust a key for images of a name, or for all images.

    KEY is a file with one public key of OpenPGP, armoured or binary. From then on an image of the name is only imported
    with a good signature by a key that is trusted for the name. The command shows the key, and asks.

    \b
      minit trust add --prefix=example.com/app key.asc
      minit trust add --root --skip-fingerprint-review key.gpg
      minit trust --prefix=example.com/app key.asc               (as in rkt)

    """
    invocation.become_root()
    _check_scope(prefix, root=root)
    if not keys:
        raise click.UsageError("no key given: minit discovers no keys, so download one, and give the file")

    def add_one(path: str) -> None:
        if path.startswith(_DOWNLOADS):
            raise StoreError(f"{path}: minit downloads no keys: download the key, and give the file")
        for key in read_public_keys(Path(path)):
            _show(invocation, prefix, path, key)
            if key.unusable is not None:
                raise StoreError(f"{path}: key {key.fingerprint} is {key.unusable}")
            if not skip_fingerprint_review and not _is_accepted():
                raise StoreError(f"{path}: not trusted")
            target = store_key(key_places(invocation.caller), prefix, key)
            scope = "root key" if prefix is None else f'key for prefix "{prefix}"'
            invocation.say(f'Added {scope} at "{target}"')

    for_each(invocation, keys, add_one, "failed to trust one or more keys")


_ADD_FLAGS = ("--prefix", "--root", "--skip-fingerprint-review", "--insecure-allow-http")


def _check_scope(prefix: str | None, *, root: bool) -> None:
    if prefix is not None and root:
        raise click.UsageError("--root and --prefix exclude each other")
    if prefix is None and not root:
        raise click.UsageError("give --prefix=NAME, for images of a name, or --root, for all images")
    if prefix is not None:
        check_prefix(prefix)


def _show(invocation: Invocation, prefix: str | None, path: str, key: PublicKey) -> None:
    invocation.say(f'prefix: "{prefix or ""}"\nkey: "{harmless(path)}"')
    invocation.say(f"gpg key fingerprint is: {_spaced(key.fingerprint)}")
    for subkey in key.subkeys:
        invocation.say(f"    Subkey fingerprint: {_spaced(subkey)}")
    for user_id in key.user_ids:
        invocation.say(f"\t{harmless(user_id)}")


def _spaced(fingerprint: str) -> str:
    """Return a fingerprint in groups of four, as gpg and rkt show fingerprints."""
    digits = fingerprint.upper()
    half = len(digits) // 2
    groups = [" ".join(part[at : at + 4] for at in range(0, half, 4)) for part in (digits[:half], digits[half:])]
    return "  ".join(groups)


def _is_accepted() -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "nobody can be asked without a terminal: compare the fingerprint, then --skip-fingerprint-review"
        )
    answer: str = click.prompt(
        "Are you sure you want to trust this key?", type=click.Choice(["yes", "no"]), prompt_suffix=" "
    )
    return answer == "yes"


@click.command("list", cls=MinitCommand)
@_prefix_option
@no_legend_option
@format_option
@click.pass_obj
def list_keys(invocation: Invocation, prefix: str | None, no_legend: bool, output_format: str | None) -> None:
    """
    List the trusted keys.

    With --prefix the keys that are in force for images of the name.

    \b
      minit trust list
      minit trust list --prefix=example.com/app --format=json

    """
    places = key_places(invocation.caller)
    files = key_files(places)
    if prefix is not None:
        check_prefix(prefix)
        files = usable_keys([key for key in files if is_for(key, prefix)])
    if output_format is not None:
        listed = [
            {"fingerprint": key.fingerprint, "prefix": key.prefix, "path": str(key.path), "masked": key.is_mask}
            for key in files
        ]
        invocation.say(json_text(listed, output_format))
        return
    rows = [] if no_legend else [("PREFIX", "FINGERPRINT", "STATE", "PATH")]
    for key in files:
        state = "mask" if key.is_mask else "trusted"
        rows.append((key.prefix or "(all images)", key.fingerprint, state, str(key.path)))
    invocation.say(align(rows), end="")


@click.command("rm", cls=MinitCommand)
@_prefix_option
@_root_option
@click.argument("fingerprints", metavar="FINGERPRINT...", nargs=-1, required=True)
@click.pass_obj
def remove(invocation: Invocation, prefix: str | None, root: bool, fingerprints: Sequence[str]) -> None:
    """
    Trust a key no longer.

    The system's key stays where it is, and is masked by an empty file in the local configuration.

    \b
      minit trust rm --prefix=example.com/app 8b86de38890ddb7291867b025210bd8888182190

    """
    invocation.become_root()
    _check_scope(prefix, root=root)
    places = key_places(invocation.caller)
    for_each(
        invocation,
        fingerprints,
        lambda fingerprint: invocation.say(remove_key(places, prefix, fingerprint)),
        "failed to remove one or more keys",
    )


trust_group = _TrustGroup("trust", commands={"add": add, "list": list_keys, "rm": remove})
