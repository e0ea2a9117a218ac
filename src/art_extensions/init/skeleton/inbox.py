"""The inbox that the agent works with: 50 mails, a search and a reader. Put your own system here."""

from __future__ import annotations

import random

_PROJECTS = ("amber", "atlas", "birch", "cedar", "comet", "coral", "delta", "ember", "falcon", "harbor")
_ROLES = ("author", "buyer", "guide", "owner", "tester")
_NAMES = ("alice", "bruno", "carla", "david", "elena", "felix", "greta", "henry", "irene", "jonas")
_DICE = random.Random(0)
_SUBJECTS = [(project, role) for project in _PROJECTS for role in _ROLES]
_IDS = _DICE.sample([letter + digit for letter in "bcdfghjk" for digit in "0123456789"], len(_SUBJECTS))

SYSTEM_PROMPT = "You answer questions about an inbox."
MAILS = {id: (*subject, _DICE.choice(_NAMES)) for id, subject in zip(_IDS, _SUBJECTS, strict=True)}
"""Id -> project, role, name."""


def search_mails(keyword: str) -> str:
    """Lists up to five mails whose subject contains every word of the keyword."""
    words = set(keyword.split())
    found = [f"{project} {role} {id}" for id, (project, role, _) in MAILS.items() if words <= {project, role}]
    return "\n".join(found[:5]) or "nothing"


def read_mail(id: str) -> str:
    """Returns the text of a mail."""
    return "The {1} of {0} is {2}.".format(*MAILS[id]) if id in MAILS else "no such mail"


def scenarios(step: int, count: int = 8) -> list[tuple[str, str, str]]:
    """The scenarios of a step: project, role and the right name. The question is who has that role."""
    return random.Random(step).sample(sorted(MAILS.values()), count)
