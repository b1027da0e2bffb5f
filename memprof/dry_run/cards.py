"""Cards that a program can be run for: those that are listed, a size, a description in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from memprof.errors import SettingsError
from memprof.units import format_bytes, parse_bytes

__all__ = ["Card", "card_named", "described", "figures_of_capability", "listed"]

LISTED = Path(__file__).with_name("cards.json")
_LIKE = "a100-80gb"
"""The card whose other figures one has that is only a size."""
_FILLERS = re.compile(r"\b(nvidia|geforce|tesla|generation)\b|[\s_]+")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What torch and the allocator can see of a card; bytes as the driver reports them."""

    name: str
    total_bytes: int
    """As ``torch.cuda.mem_get_info()`` says it: less than what is printed on the box."""
    context_bytes: int
    """What a process takes of it before the first tensor."""
    capability: str
    """``"9.0"``"""
    multiprocessors: int
    l2_bytes: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block_optin: int
    shared_bytes_reserved_per_block: int
    integrated: int = 0
    """1 where it shares its memory with the host, as a Jetson does."""
    nccl_channels: int = 0
    """Of NCCL among several of them, as they are usually connected; 0: over PCIe."""
    assumed: tuple[str, ...] = ()
    """Figures for which there is no source: those of a like card."""
    sources: Mapping[str, str] = {}
    """Where each figure is from."""

    @property
    def lines(self) -> str:
        """As the library reads it: ``name=value``, a line each."""
        major, _, minor = self.capability.partition(".")
        values = msgspec.structs.asdict(self)
        del values["assumed"], values["sources"], values["capability"]
        values |= {"major": major, "minor": minor}
        return "\n".join(f"{name}={value}" for name, value in values.items())


def listed() -> Mapping[str, Card]:
    """The cards that are known by name, smallest capability first."""
    return {key: _card(values) for key, values in _document()["cards"].items()}


def card_named(text: str) -> Card:
    """The card that ``--gpu`` names: one of the list, a size as ``24GiB``, or a file.

    Raises:
        SettingsError: it is none of them.
    """
    if text.endswith(".json") or Path(text).is_file():
        return described(Path(text))
    cards = listed()
    name = _plain(text)
    for key, card in cards.items():
        if name in (key, _plain(card.name)):
            return card
    if re.match(r"[\d.]+ *[a-z]", text, re.IGNORECASE):
        return _of_size(parse_bytes(text))
    like = [key for key in cards if key.startswith(name)] or get_close_matches(name, cards)
    hint = f"did you mean {' or '.join(like)}? " if like else ""
    raise SettingsError(
        f"no card is known as {text!r}",
        f"{hint}memprof dry-run --list-gpus lists them; a size such as 24GiB or a file will do",
    )


def described(path: Path) -> Card:
    """The card that a file describes, as `memprof doctor --describe-gpu` writes it.

    Figures that follow from the capability may be left out.

    Raises:
        SettingsError: it cannot be read or does not describe a card.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return _card(values)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", "see --gpu") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(
            f"{path} does not describe a card: {error}",
            "memprof doctor --describe-gpu writes such a file on a machine with one",
        ) from error


def _of_size(total_bytes: int) -> Card:
    like = listed()[_LIKE]
    return msgspec.structs.replace(
        like,
        name=f"a card of {format_bytes(total_bytes)}",
        total_bytes=total_bytes,
        sources={
            **dict.fromkeys(like.sources, f"as of {like.name}, because only a size was given"),
            "total_bytes": "given",
        },
    )


def _card(values: Mapping[str, Any]) -> Card:
    return msgspec.convert({**figures_of_capability(values["capability"]), **values}, Card)


def figures_of_capability(capability: str) -> Mapping[str, int]:
    """What all cards of a compute capability have in common; empty for one that is not known."""
    figures: dict[str, int] = _document()["capabilities"].get(capability, {})
    return figures


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(LISTED.read_text(encoding="utf-8"))
    return document


def _plain(name: str) -> str:
    """``NVIDIA GeForce RTX 4090`` -> ``rtx-4090``."""
    return re.sub(r"-+", "-", _FILLERS.sub("-", name.lower())).strip("-")
