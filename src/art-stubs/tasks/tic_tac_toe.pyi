# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.environments.tasks.tic_tac_toe import CELLS as CELLS
from art.environments.tasks.tic_tac_toe import DEFAULTS as DEFAULTS
from art.environments.tasks.tic_tac_toe import DESCRIPTION as DESCRIPTION
from art.environments.tasks.tic_tac_toe import EMPTY as EMPTY
from art.environments.tasks.tic_tac_toe import TicTacToe as Game
from art.environments.tasks.tic_tac_toe import LINES as LINES
from art.environments.tasks.tic_tac_toe import NAME as NAME
from art.environments.tasks.tic_tac_toe import REWARDS as REWARDS
from art.environments.tasks.tic_tac_toe import SCORE as SCORE
from art.environments.tasks.tic_tac_toe import SCORE_LABEL as SCORE_LABEL
from art.environments.tasks.tic_tac_toe import SYSTEM_PROMPT as SYSTEM_PROMPT
from art.environments.tasks.tic_tac_toe import TicTacToeScenario as Scenario
from art.environments.tasks.tic_tac_toe import TITLE as TITLE
from art.environments.tasks.tic_tac_toe import draw_board as draw_board
from art.environments.tasks.tic_tac_toe import environment as environment
from art.environments.tasks.tic_tac_toe import free_cells as free_cells
from art.environments.tasks.tic_tac_toe import outcome as outcome
from art.environments.tasks.tic_tac_toe import parse_move as parse_move
from art.environments.tasks.tic_tac_toe import place as place
from art.environments.tasks.tic_tac_toe import rollout as rollout
from art.environments.tasks.tic_tac_toe import scenario as scenario
from art.environments.tasks.tic_tac_toe import show as show
from art.environments.tasks.tic_tac_toe import winner as winner

__all__ = ["CELLS", "DEFAULTS", "DESCRIPTION", "EMPTY", "Game", "LINES", "NAME", "REWARDS", "SCORE", "SCORE_LABEL", "SYSTEM_PROMPT", "Scenario", "TITLE", "draw_board", "environment", "free_cells", "outcome", "parse_move", "place", "rollout", "scenario", "show", "winner"]

