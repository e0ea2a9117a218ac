"""What a task folder says is read, and what cannot be run here is refused by its file and field."""

import json

import pytest
from harbor_tasks import FILES, make_task

from art.errors import ConfigurationError
from art_extensions.harbor.dockerfile import read_build
from art_extensions.harbor.environment import HarborEnvironment
from art_extensions.harbor.task_folders import HarborTask, find_tasks


def test_a_task_is_read(tmp_path):
    task = HarborTask.read(make_task(tmp_path / "hello"))
    assert (task.name, task.setup_s, task.agent_s, task.verifier_s) == ("art/hello", 60, 20, 20)
    assert task.instruction.startswith("Write the word hello") and task.variables == {}


def test_variables_are_this_programs_own_or_the_default(tmp_path, monkeypatch):
    toml = '[environment.env]\nA = "x${ART_TEST_A}"\nB = "${ART_TEST_B:-none}"\n'
    folder = make_task(tmp_path, {"task.toml": toml})
    with pytest.raises(ConfigurationError, match=r"env\.A needs the environment variable ART_TEST_A"):
        HarborTask.read(folder)
    monkeypatch.setenv("ART_TEST_A", "1")
    assert HarborTask.read(folder).variables == {"A": "x1", "B": "none"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"task.toml": None}, "no task.toml"),
        ({"task.toml": "["}, "no TOML"),
        ({"task.toml": "environment = 3"}, "environment is 3"),
        ({"task.toml": "[agent]\ntimeout_sec = -1"}, "timeout_sec is -1"),
        ({"task.toml": "[agent]\ntimeout_sec = inf"}, "timeout_sec is inf"),
        ({"task.toml": "[verifier]\ntimeout_sec = true"}, "timeout_sec is True"),
        ({"task.toml": '[[steps]]\nname = "one"'}, "several steps"),
        ({"task.toml": '[environment]\nos = "windows"'}, "only linux"),
        ({"instruction.md": None}, "no instruction.md"),
        ({"tests/test.sh": None}, "no tests/test.sh"),
    ],
)
def test_what_is_no_task_is_refused(tmp_path, changes, named):
    with pytest.raises(ConfigurationError, match=named):
        HarborTask.read(make_task(tmp_path, changes))


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("FROM a AS b\nFROM c", "line 2: builds of several stages"),
        ('FROM a\nSHELL ["bash"]', "line 2: SHELL"),
        ("FROM a\nRUN <<EOF\nls\nEOF", "here-document"),
        ("FROM a\nRUN --mount=type=cache ls", "here-document or options"),
        ("FROM a\nCOPY --from=b x y", "--from=b"),
        ("FROM a\nADD https://example.org/x y", "no network"),
        ("FROM a\nCOPY ../task.toml .", "no file of"),
        ("FROM a\nCOPY missing.txt .", "no file of"),
        ("FROM a\nCOPY data.txt", "a source and a target"),
    ],
)
def test_what_the_jail_cannot_follow_is_refused_by_its_line(tmp_path, lines, named):
    folder = make_task(tmp_path, {"environment/Dockerfile": lines})
    with pytest.raises(ConfigurationError, match=named):
        read_build(folder / "environment")


def test_services_are_refused(tmp_path):
    folder = make_task(tmp_path, {"environment/docker-compose.yaml": "services: {}"})
    with pytest.raises(ConfigurationError, match="no services"):
        read_build(folder / "environment")


def test_a_dockerfile_is_followed_from_top_to_bottom(tmp_path):
    lines = """\
FROM ubuntu
# a comment
ENV A=1 B="two words"
ENV OLD one two
WORKDIR /srv
WORKDIR $A/deep
COPY data.txt other.txt
RUN ["echo", "a b"]
CMD ["true"]
"""
    folder = make_task(tmp_path, {"environment/Dockerfile": lines})
    build = read_build(folder / "environment")
    assert build.variables == {"A": "1", "B": "two words", "OLD": "one two"}
    assert build.workdir == "/srv/1/deep"
    copied, ran = build.steps[-2:]
    assert copied.target == "/srv/1/deep/other.txt" and [one.name for one in copied.sources] == ["data.txt"]
    assert (ran.command, ran.workdir) == ("echo 'a b'", "/srv/1/deep")


def test_tasks_are_found_by_path_and_in_a_registry(tmp_path):
    first, second = make_task(tmp_path / "set" / "b"), make_task(tmp_path / "set" / "a")
    assert find_tasks(str(first)) == [first]
    assert find_tasks(str(tmp_path / "set")) == [second, first]
    registry = tmp_path / "registry.json"
    sets = [
        {"name": "words", "version": "1.0", "tasks": [{"name": "b", "path": "set/b"}]},
        {"name": "words", "version": "2.0", "tasks": [{"name": "a", "path": "set/a"}]},
        {"name": "out", "version": "1", "tasks": [{"name": "x", "path": "../x"}]},
        {
            "name": "far",
            "version": "1",
            "tasks": [{"name": "x", "path": "x", "git_url": "https://example.org"}],
        },
    ]
    registry.write_text(json.dumps(sets))
    assert find_tasks("words@1.0", registry) == [first] and find_tasks("words", registry) == [second]
    for name, named in [
        ("out", "leaves the registry's folder"),
        ("far", "lies elsewhere"),
        ("word", "did you mean"),
        ("words@3", "has no dataset"),
    ]:
        with pytest.raises(ConfigurationError, match=named):
            find_tasks(name, registry)
    with pytest.raises(ConfigurationError, match="has no task folder in it"):
        find_tasks(str(tmp_path))
    with pytest.raises(ConfigurationError, match="is no folder"):
        find_tasks(str(tmp_path / "nowhere"))


def test_each_task_is_in_one_split_and_always_the_same(tmp_path):
    for number in range(6):
        make_task(tmp_path / f"t{number}")
    environment = HarborEnvironment(str(tmp_path), val=2)
    train, val = environment.scenarios("train"), environment.scenarios("val")
    assert len(train) == 4 and len(val) == 2
    assert len({one.id for one in (*train, *val)}) == 6
    assert HarborEnvironment(str(tmp_path), val=2).scenarios("val") == val
    assert HarborEnvironment(str(tmp_path / "t0")).scenarios("val") == []


def test_an_unknown_sandbox_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigurationError, match="did you mean 'docker'"):
        HarborEnvironment(str(make_task(tmp_path)), sandbox="doker")
    with pytest.raises(ConfigurationError, match=r"python3\.12 -m venv"):
        HarborEnvironment(str(make_task(tmp_path)), sandbox="docker")
    assert set(FILES) >= {"task.toml", "tests/test.sh"}
