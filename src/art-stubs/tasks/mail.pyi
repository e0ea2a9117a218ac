# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.environments.tasks.mail import DEFAULTS as DEFAULTS
from art.environments.tasks.mail import DESCRIPTION as DESCRIPTION
from art.environments.tasks.mail import ID_LETTERS as ID_LETTERS
from art.environments.tasks.mail import Inbox as Inbox
from art.environments.tasks.mail import Mail as Mail
from art.environments.tasks.mail import NAME as NAME
from art.environments.tasks.mail import NAMES as NAMES
from art.environments.tasks.mail import PARAMETERS as PARAMETERS
from art.environments.tasks.mail import PROJECTS as PROJECTS
from art.environments.tasks.mail import PROJECTS_USED as PROJECTS_USED
from art.environments.tasks.mail import ROLES as ROLES
from art.environments.tasks.mail import SCORE as SCORE
from art.environments.tasks.mail import SCORE_LABEL as SCORE_LABEL
from art.environments.tasks.mail import SEARCH_LIMIT as SEARCH_LIMIT
from art.environments.tasks.mail import SYSTEM_PROMPT as SYSTEM_PROMPT
from art.environments.tasks.mail import MailScenario as Scenario
from art.environments.tasks.mail import TITLE as TITLE
from art.environments.tasks.mail import TOOLS as TOOLS
from art.environments.tasks.mail import TURN_LIMIT as TURN_LIMIT
from art.environments.tasks.mail import environment as environment
from art.environments.tasks.mail import parse_call as parse_call
from art.environments.tasks.mail import read as read
from art.environments.tasks.mail import rollout as rollout
from art.environments.tasks.mail import scenario as scenario
from art.environments.tasks.mail import search as search
from art.environments.tasks.mail import show as show

__all__ = ["DEFAULTS", "DESCRIPTION", "ID_LETTERS", "Inbox", "Mail", "NAME", "NAMES", "PARAMETERS", "PROJECTS", "PROJECTS_USED", "ROLES", "SCORE", "SCORE_LABEL", "SEARCH_LIMIT", "SYSTEM_PROMPT", "Scenario", "TITLE", "TOOLS", "TURN_LIMIT", "environment", "parse_call", "read", "rollout", "scenario", "search", "show"]

