"""Code against tests that it must not be able to see, change or forge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from art.errors import ConfigurationError, VerifierError
from art.rewards.verifiers import CodeTests, Limits, ProgramCases
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

pytestmark = pytest.mark.slow

TESTS = ["assert add(1, 2) == 3  # needle", "assert add(-1, 1) == 0  # needle"]
LIMITS = Limits(cpu_s=1, wall_s=60)


@pytest.fixture(scope="module")
def code() -> Iterator[CodeTests]:
    yield CodeTests(key="tests", limits=LIMITS, partial=True)


async def score(verifier: Any, source: str, tests: Any) -> tuple[float | Unscored, str]:
    found = await verifier.verify(source, tests)
    return found.value, found.explanation


async def test_right_wrong_and_half_right(code: CodeTests) -> None:
    assert await score(code, "def add(a, b): return a + b", TESTS) == (1.0, "2 of 2 passed")
    value, why = await score(code, "Half:\n```python\ndef add(a, b):\n    return abs(a) + b\n```", TESTS)
    assert value == 0.5 and "test 2: AssertionError" in why
    assert (await score(CodeTests("x", limits=LIMITS), "def add(a, b): return abs(a) + b", TESTS))[0] == 0.0


FORGERIES = {
    "ends early": "import sys\nsys.exit(0)",
    "ends at once": "import os\nos._exit(0)",
    "ends when called": "import os\ndef add(a, b): os._exit(0)",
    "equals everything": (
        "class Any(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Any(7)"
    ),
    "prints the verdict": 'print(\'{"passed": 2, "total": 2, "failures": []}\')\ndef add(a, b): return 9',
    "writes the verdict to every descriptor": (
        "import os\n"
        'line = b\'{"passed": 2, "total": 2, "failures": []}\\n\'\n'
        "def add(a, b):\n"
        "    for n in range(3, 64):\n"
        "        try: os.write(n, line)\n"
        "        except OSError: pass\n"
        "    return 9"
    ),
    "takes the place of what tests use": (
        "def abs(x): return 3\ndef __eq__(*a): return True\nAssertionError = None\n"
        "import builtins\nbuiltins.AssertionError = type('Fine', (BaseException,), {})\n"
        "def add(a, b): return 9"
    ),
    "raises what ends a program": "def add(a, b): raise SystemExit(0)",
    "claims that the tests are broken": "def add(a, b): raise SyntaxError('not my fault')",
    "claims that a package is missing": "def add(a, b): raise ImportError('numpy', name='numpy')",
    "looks for the tests": """
import gc, os, sys
def add(a, b):
    wanted, frame = "nee" + "dle", sys._getframe()
    seen = [str(thing) for thing in gc.get_objects() if isinstance(thing, (dict, list))]
    while frame:
        seen.append(str(frame.f_locals))
        frame = frame.f_back
    for folder, _, names in os.walk("."):
        seen += [open(os.path.join(folder, name)).read() for name in names]
    found = [text for text in [*seen, sys.argv, sys.orig_argv] if wanted in str(text)]
    return f"found {found[0]}" if found else 9
""",
    "brings tests of its own": (
        "def add(a, b): return 9\ndef check(candidate): pass\n"
        "for n in range(100): exec(f'def test_{n}(): pass')"
    ),
    "names its functions with what is no name": (
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'{\"ready\": [1, null, {}]}\\n')\n"
        "    except OSError: pass"
    ),
    "says that it is ready with nonsense": (
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'{\"ready\": 7}\\n')\n"
        "    except OSError: pass"
    ),
    "gives nonsense": "def add(a, b): return object()",
    "nests without end": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "gives more than fits": "def add(a, b): return 'x' * 10 ** 8",
    "gives an endless number": "def add(a, b): return 10 ** 100_000",
    "floods": "import sys\nwhile True: print('x' * 10 ** 6)",
    "never ends": "def add(a, b):\n    while True: pass",
    "eats memory": "def add(a, b): return bytearray(10 ** 11)",
    "recurses": "def add(a, b): return add(a, b)",
    "is no code": "I cannot help with that.",
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_verdict_cannot_be_forged(code: CodeTests, name: str) -> None:
    value, why = await score(code, FORGERIES[name], TESTS)
    assert value == 0.0, why
    assert why.startswith("0 of 2 passed; ")


async def test_the_forgery_that_writes_everywhere_only_speaks_for_itself(code: CodeTests) -> None:
    """What reaches us from the solution is taken for the value of a call, never for a verdict."""
    source = (
        "import os\n"
        'for n in range(3, 64):\n    try: os.write(n, b\'{"passed": 9, "total": 9, "failures": []}\\n\')\n'
        "    except OSError: pass\n"
        "def add(a, b): return a + b"
    )
    assert (await score(code, source, TESTS))[0] == 0.0


async def test_kinds_of_tests(code: CodeTests) -> None:
    functions = "def test_one(): assert add(1, 1) == 2\ndef test_two(): assert add(1, 1) == 3"
    value, why = await score(code, "def add(a, b): return a + b", functions)
    assert value == 0.5 and "test_two" in why
    imported = (
        "from solution import add\nimport solution\nassert solution.add([1], [2]) == [1, 2] == add([1], [2])"
    )
    assert (await score(code, "def add(a, b): return a + b", imported))[0] == 1.0
    raising = (
        "try:\n    add(1, None)\nexcept TypeError:\n    pass\nelse:\n    raise AssertionError('no error')"
    )
    assert (await score(code, "def add(a, b): return a + b", raising))[0] == 1.0
    assert (await score(code, "def add(a, b): return 1", raising))[0] == 0.0
    candidate = CodeTests(
        "def check(candidate):\n    assert candidate(2) == 4", entry="double", limits=LIMITS
    )
    group = TrajectoryGroup(
        Trajectory(messages_and_choices=[{"role": "assistant", "content": text}])
        for text in ("def double(x): return 2 * x", "def double(x): return x", "def other(x): return 2 * x")
    )
    assert [t.reward for t in await candidate.score_group(group)] == [1.0, 0.0, 0.0]


async def test_what_a_solution_calls_a_test_is_none(code: CodeTests) -> None:
    source = (
        "def add(a, b): return abs(a) + b\ndef test_x(): pass\ndef test_y(): pass\ndef check(candidate): pass"
    )
    value, why = await score(code, source, TESTS)
    assert (value, why[:15]) == (0.5, "1 of 2 passed; ")


async def test_a_result_that_is_passed_on_cannot_make_the_tests_unusable(code: CodeTests) -> None:
    source = "def wrap(x):\n    for _ in range(62): x = [x]\n    return x\ndef same(x): return x"
    value, why = await score(code, source, "assert same([[wrap(1)], [[wrap(1)]]]) == 1")
    assert value == 0.0 and "of 1 passed" in why


async def test_plain_values_keep_their_kind(code: CodeTests) -> None:
    values = "[(1, 2), {3}, b'x', {(1, 2): None}, 1j, float('inf'), frozenset({1}), True, 2 ** 70]"
    tests = f"value, kinds = same({values}), lambda values: [type(value) for value in values]\n"
    tests += f"assert value == {values} and kinds(value) == kinds({values})"
    assert await score(code, "def same(x): return x", tests) == (1.0, "1 of 1 passed")


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("assert add(1, 2) ==", "SyntaxError"),
        ("import a_package_that_is_not_there", "a_package_that_is_not_there"),
        ("assert add(lambda: 1, 2)", "called with what cannot be sent"),
        ([], "neither a source nor a list"),
        ([3], "neither a source nor a list"),
    ],
)
async def test_tests_that_are_at_fault_leave_it_unscored(code: CodeTests, tests: Any, reason: str) -> None:
    with pytest.raises(VerifierError, match=reason):
        await code.verify("def add(a, b): return a + b", tests)
    scored = await CodeTests(lambda trajectory: tests, limits=LIMITS).score_group(
        TrajectoryGroup(
            [
                Trajectory(
                    messages_and_choices=[{"role": "assistant", "content": "x = 1\ndef add(a, b): pass"}]
                )
            ]
        )
    )
    assert isinstance(scored.trajectories[0].reward, Unscored)


async def test_a_program_is_run_for_each_case() -> None:
    cases = [{"input": "1 2\n", "output": "3"}, {"input": "5 5\n", "output": "10\n"}]
    program = ProgramCases(cases, limits=LIMITS, partial=True)
    assert (await program.verify("a, b = map(int, input().split())\nprint(a + b)", cases)).value == 1.0
    half = await program.verify("input()\nprint('3  ')", cases)
    assert half.value == 0.5 and half.explanation == "1 of 2 passed; case 2: printed '3  \\n'"
    for source, why in [
        ("print(3)\nraise SystemExit(1)", "it exited with 1"),
        ("while True: pass", "it used up its CPU time"),
        ("while True: print('x' * 1000)", "it wrote too much"),
        ("1 / 0", "ZeroDivisionError"),
    ]:
        failed = await ProgramCases(cases, limits=LIMITS).verify(source, cases)
        assert failed.value == 0.0 and why in failed.explanation


async def test_installed_packages_are_there_when_asked_for() -> None:
    tests = ["assert name() == 'pydantic'"]
    source = "def name():\n    import pydantic\n    return pydantic.__name__"
    limits = Limits(memory_bytes=1 << 30, cpu_s=20, wall_s=100)
    assert (await CodeTests("x", packages=True, limits=limits).verify(source, tests)).value == 1.0
    assert (await CodeTests("x", limits=limits).verify(source, tests)).value == 0.0


def test_misuse_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="either `expected=`"):
        CodeTests()
    with pytest.raises(ConfigurationError, match="either `expected=`"):
        CodeTests("assert True", key="tests")
    with pytest.raises(ConfigurationError, match="isolation='none'"):
        CodeTests("assert True", isolation="none")
    with pytest.raises(ConfigurationError, match="at_once=0"):
        CodeTests("assert True", at_once=0)


@pytest.mark.parametrize("cases", ["not json", 5, "5", {"input": "1"}, [{"input": "1"}], []])
async def test_cases_of_no_known_form_are_no_verdict(cases: object) -> None:
    with pytest.raises(VerifierError, match="cases"):
        await ProgramCases(cases, limits=LIMITS).verify("print(1)", cases)
