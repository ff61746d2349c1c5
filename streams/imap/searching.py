"""UID SEARCH, by ESEARCH (RFC 4731) where offered.

Invariant: fail closed. A result that does not parse, or that is told twice, is an error and never an empty or a
partial set (cases 24 and 25). A server that refuses ESEARCH, or answers it as if it were SEARCH, is asked plainly, and
only so from then on.
"""

from __future__ import annotations

from typing import Literal

from pyroaring import BitMap

from streams.errors import MalformedAnswer
from streams.imap.channel import Channel
from streams.imap.errors import CommandRejected
from streams.imap.protocol.codes import During
from streams.imap.protocol.commands import Command
from streams.imap.protocol.responses import Found, FoundExtended, Malformed, Response
from streams.imap.values import SearchAnswer


async def uid_search(channel: Channel, criteria: bytes, returns: Literal["all", "bounds"]) -> SearchAnswer:
    """UIDs that match, by ESEARCH where offered."""
    if not channel.has("ESEARCH"):
        return await _plain_search(channel, criteria)
    try:
        return await _extended_search(channel, criteria, returns)
    except CommandRejected as error:
        answer = await _plain_search(channel, criteria)  # refused too: then the criteria were at fault, not ESEARCH
        channel.refuse("ESEARCH", error=error)
        return answer


async def _extended_search(channel: Channel, criteria: bytes, returns: Literal["all", "bounds"]) -> SearchAnswer:
    options = b"(ALL)" if returns == "all" else b"(MIN MAX COUNT)"
    answer: list[FoundExtended] = []
    malformed = otherwise = False

    def take(response: Response) -> bool:
        nonlocal malformed, otherwise
        match response:
            case FoundExtended(tag=tag) if tag is None or tag == exchange.tag:
                answer.append(response)
            case Malformed(kind="ESEARCH" | "SEARCH"):
                malformed = True
            case Found():
                otherwise = True
            case _:
                return False
        return True

    exchange = channel.protocol.start(
        Command("UID SEARCH", (b"RETURN", options, criteria)),
        on_untagged=take,
        timeout_s=channel.limits.command_timeout_s,
    )
    channel.accept(await channel.protocol.finish(exchange), During.COMMAND)
    if otherwise and not answer and not malformed:
        raise CommandRejected("ESEARCH was answered by SEARCH", code="esearch_ignored")
    if malformed or otherwise or len(answer) > 1 or not all(found.uid for found in answer):
        raise MalformedAnswer("a search result that does not parse")
    if not answer:
        return SearchAnswer(BitMap(), stated=False)
    found = answer[0]
    uids = found.numbers if found.numbers is not None else BitMap()
    if found.count is not None and returns == "all" and found.count != len(uids):
        raise MalformedAnswer("a search result whose count is not that of its numbers")
    return SearchAnswer(
        uids, stated=True, modseq=found.modseq, minimum=found.minimum, maximum=found.maximum, count=found.count
    )


async def _plain_search(channel: Channel, criteria: bytes) -> SearchAnswer:
    uids = BitMap()
    stated = malformed = False
    modseq: int | None = None

    def take(response: Response) -> bool:
        nonlocal stated, malformed, modseq, uids
        match response:
            case Found(numbers=numbers, modseq=told):
                stated = True
                uids |= numbers
                modseq = told if told is not None else modseq
            case Malformed(kind="SEARCH"):
                malformed = True
            case _:
                return False
        return True

    await channel.run(Command("UID SEARCH", (criteria,)), take)
    if malformed:
        raise MalformedAnswer("a search result that does not parse")
    return SearchAnswer(
        uids,
        stated=stated,
        modseq=modseq,
        minimum=uids.min() if uids else None,
        maximum=uids.max() if uids else None,
        count=len(uids),
    )
