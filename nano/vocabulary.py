"""The words that nano-words knows: content words by kind, and syllables of which unknown words are made."""

from __future__ import annotations

import random

KINDS = {
    "color": "red blue green yellow black white pink brown gray orange purple gold",
    "animal": (
        "cat dog horse cow pig sheep goat lion tiger bear wolf fox rabbit mouse bird eagle duck owl fish "
        "shark whale frog snake turtle bee ant spider monkey"
    ),
    "fruit": "apple banana cherry grape lemon lime mango melon peach pear plum fig berry kiwi",
    "food": (
        "bread rice soup cheese egg pasta salad cake honey butter salt sugar milk coffee tea juice water corn"
    ),
    "name": (
        "alice bob carol dave emma frank grace henry iris jack kate leo maria nina oscar paul quinn rose "
        "sam tina uma victor wendy xavier yara zoe anna ben clara david ella felix hanna ivan julia karl "
        "lena mark noah olga"
    ),
    "city": (
        "paris london berlin rome madrid oslo cairo tokyo delhi lima boston denver dallas vienna prague "
        "athens dublin lisbon moscow sydney seoul kyoto milan geneva"
    ),
    "thing": (
        "book pen key box lamp chair table door window clock phone cup plate knife spoon bag hat shoe "
        "coat ring ball drum bell rope stone coin map card letter mirror bottle basket hammer nail brush "
        "candle wheel tent boat car train bike plane"
    ),
    "place": (
        "house garden river forest beach island mountain valley road bridge school market kitchen office "
        "library station park farm harbor castle"
    ),
    "job": (
        "doctor teacher farmer baker pilot sailor driver painter singer writer lawyer nurse judge guard "
        "chef clerk owner manager editor tester"
    ),
    "quality": (
        "big small hot cold new old fast slow soft hard happy sad rich poor clean dirty light dark loud "
        "quiet sweet sour strong weak young early late open closed"
    ),
    "project": (
        "atlas basil cedar delta ember falcon glacier harvest indigo jasper kepler lotus meteor nova "
        "onyx pixel quartz raven saturn titan"
    ),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "number": "one two three four five six seven eight nine ten",
    "shape": "circle square triangle star cross line cube",
    "weather": "sun rain snow wind fog storm cloud",
    "answer": "yes no maybe",
}
"""Kind -> its words. Each word is one token."""

WORDS = {kind: tuple(words.split()) for kind, words in KINDS.items()}
CONTENT = tuple(dict.fromkeys(word for words in WORDS.values() for word in words))

HELD_OUT = tuple(word for at, word in enumerate(CONTENT) if at % 8 == 5 and word not in WORDS["number"])
"""Words that no taught question has as its key, its answer or its option: what is known of them is that they
are words. The gates measure copying and lookups of these."""

SYLLABLES = tuple(first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou")
ENDINGS = ("", "", "n", "r", "s", "x", "t", "l")

VERBS = "find get search read look send list check open show make set add count call buy sell move fetch play"
NOUNS = (
    "book mail order price weather color item user file word number city name status room ticket fact game"
)
ATTRIBUTES = (
    "color owner city price number day food animal name job place size weather month code team room "
    "fruit word"
)


def coin_word(dice: random.Random) -> str:
    """A word that nobody knows, such as `zorbix`: some syllables."""
    return "".join(dice.choice(SYLLABLES) for _ in range(dice.choice((2, 2, 3)))) + dice.choice(ENDINGS)
