# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.rewards.llm.budget import Budget as Budget
from art.rewards.llm.cache import AnswerCache as AnswerCache
from art.rewards.llm.channel import Channel as Channel
from art.rewards.llm.channel import Pace as Pace
from art.rewards.llm.names import base_of as base_of
from art.rewards.llm.names import resolve_llm as resolve_llm
from art.rewards.llm.request import Llm as Llm
from art.rewards.llm.request import Reply as Reply
from art.rewards.llm.request import Request as Request
from art.rewards.llm.request import Usage as Usage

__all__ = ["AnswerCache", "Budget", "Channel", "Llm", "Pace", "Reply", "Request", "Usage", "base_of", "resolve_llm"]

