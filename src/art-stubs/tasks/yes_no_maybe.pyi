# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.environments.tasks.yes_no_maybe import DEFAULTS as DEFAULTS
from art.environments.tasks.yes_no_maybe import DESCRIPTION as DESCRIPTION
from art.environments.tasks.yes_no_maybe import NAME as NAME
from art.environments.tasks.yes_no_maybe import YesNoMaybe as Question
from art.environments.tasks.yes_no_maybe import REWARDS as REWARDS
from art.environments.tasks.yes_no_maybe import SCORE as SCORE
from art.environments.tasks.yes_no_maybe import SCORE_LABEL as SCORE_LABEL
from art.environments.tasks.yes_no_maybe import YesNoMaybeScenario as Scenario
from art.environments.tasks.yes_no_maybe import TITLE as TITLE
from art.environments.tasks.yes_no_maybe import VERBS as VERBS
from art.environments.tasks.yes_no_maybe import environment as environment
from art.environments.tasks.yes_no_maybe import judge as judge
from art.environments.tasks.yes_no_maybe import phrasings as phrasings
from art.environments.tasks.yes_no_maybe import rollout as rollout
from art.environments.tasks.yes_no_maybe import scenario as scenario
from art.environments.tasks.yes_no_maybe import show as show
from art.environments.tasks.yes_no_maybe import worth as worth

__all__ = ["DEFAULTS", "DESCRIPTION", "NAME", "Question", "REWARDS", "SCORE", "SCORE_LABEL", "Scenario", "TITLE", "VERBS", "environment", "judge", "phrasings", "rollout", "scenario", "show", "worth"]

