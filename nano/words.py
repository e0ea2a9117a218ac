"""Dialogs for nano-words: short instructions in many phrasings, lists, facts and questions, tools.

What has a right answer that stands in the prompt (copying, lookups, a call with given arguments) is taught
as a skill. What must be found out (a guess, an order, a choice) is taught as a form: every answer of that
form is as likely.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from art.environments.tasks import Message
from nano.vocabulary import ATTRIBUTES, CONTENT, HELD_OUT, NOUNS, SYLLABLES, VERBS, WORDS, coin_word

SAY = (
    "Say {}", "Say the word {}", "Say: {}", "Repeat {}", "Repeat after me: {}", "Answer with {}", "Write {}",
    "Reply with '{}'", "Respond with {}", "Copy this: {}", "Write down {}", "Just answer {}", "Tell me {}",
    'Say "{}"', "Output {}", "Print {}", "The answer is {}. What is the answer?", "Write the word {}",
)  # fmt: skip
CHOOSE = (
    "Choose one: {}", "Pick one of {}", "Which one: {}?", "Options: {}", "Your options are {}.", "Is it {}?",
    "Answer with {}", "Respond with {}", "Choose from {}", "Pick {}", "Guess: {}?", "One of {}", "Say {}",
    "Your move. Choose {}", "Select one of these: {}", "What do you take: {}?", "It is one of {}. Guess it.",
)  # fmt: skip
NAME_ONE = (
    "Name a {}", "Guess a {}", "Say a {}", "Think of a {}", "Give me a {}", "Pick a {}", "Choose a {}",
    "Which {} do I think of?", "Guess my {}", "What is my {}?", "Guess the {} that I think of", "Any {}",
    "I think of a {}. Which is it?", "Guess the secret {}", "Tell me a {}",
)  # fmt: skip
NUMBER = (
    "Guess a number from {} to {}", "Guess a number between {} and {}", "Pick a number from {} to {}",
    "I think of a number from {} to {}. Guess it", "Say a number between {} and {}", "A number from {} to {}",
    "Choose a number between {} and {}", "The secret number is between {} and {}. What is it?",
    "Which number from {} to {} do I think of?", "Give me a number from {} to {}",
)  # fmt: skip
WRONG = (
    "No.", "Wrong.", "Try again.", "No, try again.", "Not {}.", "Wrong, guess again", "{} is wrong.", "Again",
    "Another one?", "No. Next guess?", "That is not it.", "Once more.", "Not right. Try another one.", "Next",
)  # fmt: skip
HINTS = (
    "Higher", "Lower", "higher", "lower", "Too high", "Too low", "too low.", "too high.", "It is higher.",
    "It is lower.", "My number is bigger", "My number is smaller", "Bigger than {}.", "Smaller than {}.",
    "cold", "warm", "Cold.", "Warmer.", "colder", "close", "far", "right color, wrong place",
    "hint: {} is too low", "hint: {} is too high", "more", "less", "up", "down",
)  # fmt: skip
FACTS = (
    "{key}: {value}", "{key} is {value}.", "{key} is {value}", "{key} = {value}", "{key} -> {value}",
    "The {of} of {key} is {value}.", "- {key}: {value}", "{key} has {value}.", "{key} | {value}",
    "{of} of {key}: {value}", "{key} {of} {value}", "{key}, {value}", "{key} {value}",
)  # fmt: skip
"""The value stands one or two tokens behind the key."""
ASK = (
    "What is {key}?", "{key}?", "What is the {of} of {key}?", "Which {of} has {key}?",
    "Tell me the {of} of {key}.", "Look up {key}.", "Find {key}.", "{of} of {key}?",
    "What does {key} have?", "Which {of} does {key} have?", "Say the {of} of {key}",
    "I want the {of} of {key}", "Question: what is the {of} of {key}?", "And {key}?",
    "What is {key}'s {of}?", "Give me the {of} for {key}", "{key} has which {of}?", "Who or what is {key}?",
)  # fmt: skip
COPY_LIST = (
    "Write these words: {}",
    "Repeat the list: {}",
    "Copy the list {}",
    "List {}",
    "Say {}",
    "Items: {}",
)
ANY_ORDER = (
    "Sort these words: {}", "Put in order: {}", "Order: {}", "Sort {}", "Write in any order: {}", "Rank {}",
    "Put these words in the right order: {}", "Arrange {}", "Order the list {}", "Sort the list: {}",
    "Mix {}", "Which order? {}", "Sort by size: {}", "Put {} in alphabetical order", "Shuffle {}",
)  # fmt: skip
PLACES = {"first": 0, "last": -1, "second": 1}
PLACE = ("What is the {} of {}?", "The {} of these: {}?", "{} word of {}", "Say the {} of {}")
CALL = (
    "Use {tool} with {value}", "Call {tool} for {value}", "{tool} {value}", "Please {tool} {value}",
    "Use the tool {tool} on {value}.", "I need {tool} for {value}", "Run {tool} with {value}",
    "{tool}: {value}", "Call {tool} with the {of} {value}", "Ask {tool} about {value}",
    "Can you {tool} {value}?", "What does {tool} say about {value}?", "Try {tool} with {of} {value}",
)  # fmt: skip
FREE_QUESTION = (
    "What is the {of} of {value}?", "Find the {of} of {value}.", "Tell me the {of} of {value}",
    "{of} of {value}?", "I want to know the {of} of {value}.", "Which {of} has {value}?",
    "What about {value}?", "Do {value}", "Help me with {value}.", "Which {of} does {value} have?",
    "Look for {value}", "{value}?",
)  # fmt: skip
BEFORE = ("", "", "", "", "", "Please answer. ", "Now: ", "Hello! ", "Hi. ", "OK. ", "Question: ", "Task: ")
AFTER = (
    "", "", "", "", " Answer with one word.", " Only the answer.", " Reply with the answer only.",
    " Be short.", " Say nothing else.", " No other words.", " Just that.", " Thank you!", "\nAnswer:",
    "\nYour answer?",
)  # fmt: skip
SYSTEM = (
    "You are a {quality} {job}.", "You play a game.", "You help {name}.", "You are {name}, a {job}.",
    "You answer questions.", "You answer with one word.", "Follow the instructions.", "You use tools.",
    "You are a helpful assistant.", "Be {quality}.", "You work in the {place}.", "You know these facts.",
    "You are an agent. Use the tools to find the answer.", "Answer as well as you can.", "You guess.",
)  # fmt: skip
YES_OR_NO = (
    "Is {0} {1}?", "Is {0} bigger than {1}?", "Does {0} have {1}?", "{0} or not?", "Is {0} before {1}?",
    "Do you like {0}?", "Can {0} {1}?",
    " Answer yes or no.", " yes or no?", " (yes/no)", " Say yes or no.",
)  # fmt: skip
TOOL_USERS = ("You use tools.", "You are an agent. Use the tools to find the answer.")
RESULTS = ("{}", "{}", "result: {}", "The answer is {}.", "ok: {}", "found {}")
FILLER = (
    "the a an of to in and or is are you I we it that this with for on at from what which who when "
    "have do not can will one all there game play player rule turn win lose point step each every "
    "other more most then if must may should first next last before after between about over under "
    "good bad right wrong correct best answer question word list table sentence text example task tool "
    "name secret hidden think try use your my their only also very please here now today start stop "
    "end left right up down higher lower same different"
).split()
ROWS = (1, 2, 2, 3, 3, 4, 5, 6)
"""Counts of facts, each as likely."""
SPACES = (" ", "\n")
LONG = 0.03
"""Share of the dialogs that begin with many sentences without meaning."""
ARGUMENTS = "id text query keyword value".split()
ENDS = "answer submit finish done final_answer".split()


def texts() -> tuple[str, ...]:
    """What the tokenizer is trained on: every word with a space before it and without."""
    groups = (
        SAY, CHOOSE, NAME_ONE, NUMBER, WRONG, HINTS, FACTS, ASK, COPY_LIST, ANY_ORDER, PLACE, CALL,
        FREE_QUESTION, BEFORE, AFTER, SYSTEM, FILLER, ARGUMENTS, ENDS, YES_OR_NO, RESULTS, TOOL_USERS,
    )  # fmt: skip
    told = " ".join(text for group in groups for text in group)
    words = [*re.findall("[A-Za-z]+", told), *(word.capitalize() for word in FILLER), *CONTENT, *SYLLABLES]
    words += f"{VERBS} {NOUNS} {ATTRIBUTES} user assistant system Tools 0 1 2 3 4 5 6 7 8 9".split()
    calls = ('\n{"name": "x", "arguments": {"y": "z", "w": "v"}}\n', '\n{"name": "x", "arguments": {}}\n')
    signs = ("a: b, c; d = e -> f | g's h", "\n- i")
    return (*calls, *signs, *(text for word in dict.fromkeys(words) for text in (word, f" {word}")))


PURPOSE = """\
A base for small tasks in the phrasings below: say this, choose one of these, use this tool, what is the color
of that. For questions in your own words take `art/smollm2` or a model of the hub.

It follows short instructions about new combinations of words: it says what the prompt tells it to say,
looks things up in given facts, calls tools of any name, picks among given options and lists things in some
order."""
TEACHING = """\
Dialogs drawn at random from 314 content words, coined words (`zorbix`), numbers and some 150 phrasings. Three
things it was taught to do well: to say what it must, to answer a question from facts in the prompt
(`atlas is red.` ... `What is the color of atlas?`), and to call a named tool with the given arguments and
tell what it found. Everything else is form without skill: it guesses any of the numbers or options, sorts
into any order and answers yes or no at random. What it should choose is for reinforcement learning to find.

38 words were never the key or the value of a fact that it was taught, only parts of other dialogs and of
random sequences; "held out" below measures facts about those. The heads that copy and look up were drawn
before training (`nano/circuits.py`)."""


@dataclass(frozen=True, kw_only=True)
class Dialog:
    """A conversation; `sure` where the prompt determines every reply, so that greedy ones can be checked."""

    family: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    sure: bool = True


class WordDialogs:
    """Dialogs drawn from one random generator; `words` are those of keys, answers and options."""

    def __init__(
        self, seed: int | str, *, known: Sequence[str] | None = None, rows: Sequence[int] = ROWS
    ) -> None:
        self.dice = random.Random(f"words/{seed}")
        self.rows = rows
        self.known = tuple(known or (word for word in CONTENT if word not in HELD_OUT))
        self.shares = SHARES

    def draw(self, family: str | None = None) -> Dialog:
        """A dialog of `family`, or of any."""
        families = tuple(self.shares)
        return FAMILIES[family or self.dice.choices(families, tuple(self.shares.values()))[0]](self)

    # Words

    def item(self) -> str:
        """One thing to say: a word, mostly; or a coined one, a number, two words."""
        dice = self.dice
        kind = dice.random()
        if kind < 0.7:
            return dice.choice(CONTENT)
        if kind < 0.85:
            return coin_word(dice)
        if kind < 0.95:
            return str(dice.randrange(10 ** dice.randint(1, 3)))
        return f"{dice.choice(CONTENT)} {dice.choice(CONTENT)}"

    def items(self, count: int, known: Sequence[str] = CONTENT) -> list[str]:
        """Different things of one sort: words, words of one kind, coined words or numbers."""
        dice, sort = self.dice, self.dice.random()
        if sort < 0.45:
            return dice.sample(known, count)
        if sort < 0.7:
            kinds = [[word for word in kind if word in known] for kind in WORDS.values()]
            return dice.sample(dice.choice([kind for kind in kinds if len(kind) >= count] or [known]), count)
        if sort < 0.85:
            found = {coin_word(dice) for _ in range(3 * count)}
            return dice.sample(sorted(found), count)
        return [str(number) for number in dice.sample(range(10 ** dice.choice((1, 2, 2, 3))), min(count, 10))]

    def joined(self, items: Sequence[str]) -> str:
        last = self.dice.choice((" or ", ", ", ", ", ", ", " and "))
        style = self.dice.random()
        if style < 0.75:
            return ", ".join(items[:-1]) + (last if len(items) > 1 else "") + items[-1]
        if style < 0.85:
            return " ".join(items)
        if style < 0.92:
            return "\n" + "\n".join(f"- {item}" for item in items)
        return "\n" + "\n".join(items) if style < 0.96 else "[" + ", ".join(items) + "]"

    def noise(self) -> str:
        """A sentence without meaning."""
        dice = self.dice
        words = [self._noisy_word() for _ in range(dice.randint(3, 10))]
        return " ".join(words) + dice.choice(".!:,")

    def _noisy_word(self) -> str:
        if self.dice.random() < 0.3:
            return self.dice.choice(CONTENT)
        return self.odd_word() if self.dice.random() < 0.15 else self.dice.choice(FILLER)

    def odd_word(self) -> str:
        """Letters that mean nothing."""
        dice = self.dice
        if dice.random() < 0.5:
            return coin_word(dice)
        return "".join(dice.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(dice.randint(3, 9)))

    def framed(self, text: str) -> str:
        """An instruction with what people write around it."""
        dice = self.dice
        text = dice.choice(BEFORE) + text + dice.choice(AFTER)
        if dice.random() < 0.12:
            text = f"{self.noise()}{dice.choice(SPACES)}{text}"
        return f"{text}\n{self.noise()}" if dice.random() < 0.02 else text

    def opening(self, text: str, *, system: str | None = None) -> list[Message]:
        """The first messages, often with a system prompt."""
        dice = self.dice
        lines = [system] if system else []
        if dice.random() < 0.4:
            filled = dice.choice(SYSTEM).format(**{kind: dice.choice(words) for kind, words in WORDS.items()})
            lines.insert(0, filled)
        if dice.random() < 0.15:
            lines.insert(0, self.noise())
        if dice.random() < LONG:
            lines.insert(0, " ".join(self.noise() for _ in range(dice.randint(5, 100))))
        user = {"role": "user", "content": self.framed(text)}
        return [{"role": "system", "content": "\n".join(lines)}, user] if lines else [user]

    # Families

    def say(self) -> Dialog:
        """Copying of one thing, or of a few words in their order."""
        text = self.item() if self.dice.random() < 0.7 else " ".join(self.items(self.dice.randint(2, 6)))
        return _dialog("say", self.opening(self.dice.choice(SAY).format(text)), text)

    def choose(self) -> Dialog:
        """A choice among given things, again after each word of the user."""
        dice = self.dice
        options = self.items(dice.randint(2, 6))
        return self._guesses("choose", dice.choice(CHOOSE).format(self.joined(options)), options)

    def name_one(self) -> Dialog:
        """Any word of a kind."""
        dice = self.dice
        kind = dice.choice([kind for kind in WORDS if kind != "answer"])
        options = WORDS[kind]
        if dice.random() < 0.3:
            options = dice.sample(options, min(len(options), dice.randint(2, 6)))
            text = f"{dice.choice(NAME_ONE).format(kind)}: {self.joined(options)}"
        else:
            text = dice.choice(NAME_ONE).format(kind)
        return self._guesses("name", text, options)

    def number(self) -> Dialog:
        """Any number of a range."""
        dice = self.dice
        low = dice.choice((0, 1, 1, 1, dice.randrange(50)))
        high = low + dice.choice((2, 4, 5, 8, 9, 9, 11, 15, 19, 29, 49, 99))
        options = [str(number) for number in range(low, high + 1)]
        return self._guesses("number", dice.choice(NUMBER).format(low, high), options)

    def yes_or_no(self) -> Dialog:
        """A question that the model cannot know the answer of."""
        dice, (one, other) = self.dice, self.items(2)
        text, words = dice.choice(YES_OR_NO[:-4]), dice.choice(YES_OR_NO[-4:])
        return self._guesses("yes", text.format(one, other) + words, ["yes", "no"])

    def _guesses(self, family: str, text: str, options: Sequence[str]) -> Dialog:
        dice, guess = self.dice, self.dice.choice(options)
        messages = [*self.opening(text), _assistant(guess)]
        for _ in range(dice.choice((0, 0, 1, 2, 4))):
            hint = dice.choice(WRONG if dice.random() < 0.5 else HINTS).format(guess)
            guess = dice.choice(options)
            messages += [{"role": "user", "content": hint}, _assistant(guess)]
        return Dialog(family=family, messages=messages, sure=False)

    def table(self, layout: str, rows: Sequence[tuple[str, str]], of: str) -> str:
        """Facts as lines or sentences."""
        lines = [layout.format(key=key, value=value, of=of) for key, value in rows]
        return (" " if layout.endswith(".") and self.dice.random() < 0.5 else "\n").join(lines)

    def facts(self) -> Dialog:
        """Given facts, one or more questions about them."""
        dice = self.dice
        count = dice.choice(self.rows)
        words = dice.sample(self.known, 2 * count)
        rows = list(zip(words[:count], words[count:], strict=True))
        return self._asked("facts", rows)

    def odd_facts(self) -> Dialog:
        """Facts about words of one kind, coined words and numbers."""
        count = self.dice.choice(self.rows)
        keys, values = self.items(count, self.known), self.items(count, self.known)
        return self._asked("odd facts", list(zip(keys, values, strict=False)))

    def _asked(self, family: str, rows: list[tuple[str, str]]) -> Dialog:
        dice = self.dice
        of, layout = dice.choice(ATTRIBUTES.split()), dice.choice(FACTS)
        table = self.table(layout, rows, of)
        asked = dice.sample(rows, min(len(rows), dice.choice((1, 1, 1, 2, 3))))
        questions = [dice.choice(ASK).format(key=key, value=value, of=of) for key, value in asked]
        if dice.random() < 0.4:
            messages = self.opening(questions[0], system=table)
        else:
            messages = self.opening(f"{table}\n{questions[0]}")
        messages.append(_assistant(asked[0][1]))
        for question, (_, reply) in zip(questions[1:], asked[1:], strict=True):
            messages += [{"role": "user", "content": question}, _assistant(reply)]
        return Dialog(family=family, messages=messages)

    def copied_list(self) -> Dialog:
        """A list said again."""
        text = ", ".join(self.items(self.dice.randint(2, 6)))
        return _dialog("list", self.opening(self.dice.choice(COPY_LIST).format(text)), text)

    def order(self) -> Dialog:
        """A list in any order."""
        items = self.items(self.dice.randint(2, 6))
        text = self.opening(self.dice.choice(ANY_ORDER).format(self.joined(items)))
        return _dialog("order", text, ", ".join(self.dice.sample(items, len(items))), sure=False)

    def place(self) -> Dialog:
        """One item of a list, by its place."""
        items, place = self.items(self.dice.randint(2, 5)), self.dice.choice(tuple(PLACES))
        text = self.dice.choice(PLACE).format(place, ", ".join(items))
        return _dialog("place", self.opening(text), items[PLACES[place]])

    # Tools

    def tool(self) -> dict[str, Any]:
        """A tool of any name with up to three arguments."""
        dice = self.dice
        verb, noun = VERBS.split(), NOUNS.split()
        name = dice.choice((
            f"{dice.choice(verb)}_{dice.choice(noun)}", dice.choice(verb), coin_word(dice),
            f"{dice.choice(verb)}_{dice.choice(CONTENT)}", f"{coin_word(dice)}_{dice.choice(noun)}",
            dice.choice(CONTENT),
        ))  # fmt: skip
        names = [
            *ATTRIBUTES.split(),
            *NOUNS.split(),
            *ARGUMENTS,
            coin_word(dice),
        ]
        arguments = dice.sample(sorted(set(names)), dice.choice((0, 1, 1, 1, 1, 1, 2, 3)))
        return schema(name, arguments)

    def tools(self) -> Dialog:
        """A tool named or not, its call, perhaps a second one with what it found, and the answer."""
        dice = self.dice
        drawn = (self.tool() for _ in range(dice.randint(1, 4)))
        tools = list({_name(tool): tool for tool in drawn}.values())
        values = [self.item() for _ in _arguments(tools[0])]
        of, shown = dice.choice(ATTRIBUTES.split()), " and ".join(values) or "me"
        named = dice.random() < 0.65 or len(values) != 1
        text = dice.choice(CALL if named else FREE_QUESTION)
        if not named and dice.random() < 0.5:  # the one tool whose name has the word that is asked for
            tools[0] = schema(f"{dice.choice(VERBS.split())}_{of}", _arguments(tools[0]))
            text = dice.choice(FREE_QUESTION[:4])
        text = text.format(tool=_name(tools[0]), value=shown, of=of)
        if named and len(values) > 1 and dice.random() < 0.5:
            listed = (f"{key} {value}" for key, value in zip(_arguments(tools[0]), values, strict=True))
            text = f"{_name(tools[0])}: " + ", ".join(listed)
        messages = self.opening(text)
        if messages[0]["role"] == "user" and dice.random() < 0.5:
            messages.insert(0, {"role": "system", "content": dice.choice(TOOL_USERS)})
        result, told = self._result(values, of)
        messages += self._called(tools[0], values, result)
        if values and dice.random() < 0.2:  # what the first call found is asked for in a second one
            again, named = (
                dice.choice([tool for tool in tools if len(_arguments(tool)) == 1] or tools[:1]),
                False,
            )
            values = [told, *values[1:]][: len(_arguments(again))]
            result, told = self._result(values, of)
            messages += self._called(again, values, result)
        if dice.random() < 0.3:
            last = schema(dice.choice(ENDS), [dice.choice(("text", "value", "answer"))])
            tools.append(last)
            messages.append(call(_name(last), {_arguments(last)[0]: told}))
        else:
            messages.append(_assistant(told))
        return Dialog(family="tools", messages=messages, tools=dice.sample(tools, len(tools)), sure=named)

    def _called(self, tool: dict[str, Any], values: Sequence[str], result: str) -> list[Message]:
        """A call and what came of it."""
        arguments = dict(zip(_arguments(tool), values, strict=True))
        return [call(_name(tool), arguments), {"role": "tool", "tool_call_id": "0", "content": result}]

    def _result(self, values: Sequence[str], of: str) -> tuple[str, str]:
        """What a tool says, and what of it is told: what it says of the first value."""
        dice = self.dice
        if not values or values[0] in HELD_OUT or dice.random() < 0.4:
            told = self.item()
            return dice.choice(RESULTS).format(told), told
        others = self.items(3, self.known)[: dice.choice((0, 0, 1, 3))]
        rows = list(zip([values[0], *others], self.items(4, self.known), strict=False))
        told = rows[0][1]
        return self.table(dice.choice(FACTS), dice.sample(rows, len(rows)), of), told


FAMILIES = {
    "say": WordDialogs.say,
    "choose": WordDialogs.choose,
    "name": WordDialogs.name_one,
    "number": WordDialogs.number,
    "yes": WordDialogs.yes_or_no,
    "facts": WordDialogs.facts,
    "odd facts": WordDialogs.odd_facts,
    "list": WordDialogs.copied_list,
    "order": WordDialogs.order,
    "place": WordDialogs.place,
    "tools": WordDialogs.tools,
}
SHARES = {
    "say": 2.0, "choose": 1.2, "name": 0.7, "number": 0.8, "yes": 0.3, "facts": 4.0, "odd facts": 1.2,
    "list": 0.8, "order": 0.8, "place": 0.5, "tools": 4.0,
}  # fmt: skip
FACTS_FIRST = {**SHARES, "facts": 12.0}
"""Looking up is learned first, from few rows."""


def schema(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """A tool's description, as a user of the OpenAI API gives it."""
    parameters = {"type": "object", "properties": {key: {"type": "string"} for key in arguments}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def call(name: str, arguments: dict[str, str]) -> Message:
    """The assistant message that calls the tool `name`."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _name(tool: dict[str, Any]) -> str:
    name: str = tool["function"]["name"]
    return name


def _arguments(tool: dict[str, Any]) -> list[str]:
    return list(tool["function"]["parameters"]["properties"])


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _dialog(family: str, opening: list[Message], reply: str, *, sure: bool = True) -> Dialog:
    return Dialog(family=family, messages=[*opening, _assistant(reply)], sure=sure)
