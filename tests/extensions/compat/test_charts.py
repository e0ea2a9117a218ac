from __future__ import annotations

from importlib import import_module

import matplotlib
import pytest

matplotlib.use("Agg")

import polars
from matplotlib import pyplot
from matplotlib.colors import to_hex

import art_extensions.compat.benchmark_charts
from art.errors import ConfigurationError, NotBuiltError
from art.utils.benchmarking import (
    BenchmarkModelKey,
    filter_rename_model_split,
    percentage_comparison_bar_chart,
    training_progress_chart,
)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


def table(*rows):
    """(model, split, step, reward, metric_win)"""
    names = ("model", "split", "step", "reward", "metric_win")
    return polars.DataFrame(list(rows), schema=names, orient="row")


DF = table(
    ("agent", "val", 5, 0.5, 0.8),  # not in the order of the steps
    ("agent", "val", 0, 0.0, 0.0),
    ("agent", "val", 0, 1.0, 0.4),
    ("agent", "val", 5, 0.5, None),
    ("agent", "train", 0, 9.0, 1.0),
    ("gpt", "val", 0, 0.5, 0.6),
    ("o3", "val", 0, 0.5, 0.6),
    ("nan", "val", 0, 0.5, float("nan")),
)
KEYS = [BenchmarkModelKey("agent", "Ours"), BenchmarkModelKey("gpt"), BenchmarkModelKey("o3", split="val")]


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def points(line):
    return [tuple(map(float, point)) for point in line.get_xydata()]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_key_is_shown_by_its_display_name():
    assert str(BenchmarkModelKey("a")) == "a" and BenchmarkModelKey("a").split == "val"
    key = BenchmarkModelKey("a", "Ours", "train")
    assert (str(key), key.name, key.split) == ("Ours", "a", "train")


def test_rows_are_filtered_and_renamed():
    found = filter_rename_model_split(
        DF, [BenchmarkModelKey("gpt", "GPT"), BenchmarkModelKey("agent", "T", "train")]
    )
    assert found.select("model", "split", "reward").rows() == [("GPT", "val", 0.5), ("T", "train", 9.0)]
    assert filter_rename_model_split(DF, []).is_empty()


def test_progress_lines():
    figure = training_progress_chart(DF, "win", models=KEYS)
    drawn = lines(figure)
    assert list(drawn) == ["Ours", "gpt", "o3"]
    assert points(drawn["Ours"]) == [(0.0, pytest.approx(0.2)), (5.0, pytest.approx(0.8))]
    assert drawn["Ours"].get_marker() == "o" and drawn["Ours"].get_linestyle() == "-"
    assert [drawn[name].get_linestyle() for name in ("gpt", "o3")] == ["--", ":"]
    assert {y for _, y in points(drawn["gpt"])} == {0.6}
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["Ours", "gpt", "o3"]
    assert axes.get_ylabel() == "win" and axes.get_xlabel() == "Step" and "win" in axes.get_title()
    assert len({line.get_color() for line in drawn.values()}) == 3


@pytest.mark.slow
def test_progress_options():
    figure = training_progress_chart(
        DF, "reward", [BenchmarkModelKey("agent")], "T", "X", "Y", perfect_score=1.0, legend_loc="upper left"
    )
    drawn, axes = lines(figure), figure.axes[0]
    assert points(drawn["agent"]) == [(0.0, 0.5), (5.0, 0.5)]
    assert {y for _, y in points(drawn["Perfect score"])} == {1.0}
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("T", "X", "Y")
    other = training_progress_chart(DF, "reward", ["agent"], legend_loc="lower right")
    figure.canvas.draw()
    other.canvas.draw()
    assert axes.get_legend().get_window_extent().y0 > other.axes[0].get_legend().get_window_extent().y0


def test_all_models_each_split_by_itself():
    drawn = lines(training_progress_chart(DF, "metric_win"))
    assert list(drawn) == ["agent (val)", "agent (train)", "gpt", "o3"]


@pytest.mark.parametrize("chart", [training_progress_chart, percentage_comparison_bar_chart])
def test_nothing_to_draw(chart):
    with pytest.raises(ValueError, match=r"'lost'.*'metric_win'"):
        chart(DF, "lost")
    for models in (["no-such-model"], ["nan"], []):
        with pytest.raises(ValueError, match="no value of 'win'"):
            chart(DF, "win", models)
    with pytest.raises(ValueError, match="no value"):
        chart(DF.clear(), "win")
    assert pyplot.get_fignums() == []


def bars(figure):
    return [
        (bar.get_x() + bar.get_width() / 2, bar.get_y(), bar.get_height(), bar.get_hatch())
        for bar in figure.axes[0].patches
    ]


def test_comparison_bars_in_percent():
    figure = percentage_comparison_bar_chart(DF, "win", models=KEYS)
    assert [tuple(pytest.approx(v) if isinstance(v, float) else v for v in bar) for bar in bars(figure)] == [
        (0.0, 0.0, 20.0, None),
        (0.0, 20.0, 60.0, "//"),
        (1.0, 0.0, 60.0, None),
        (2.0, 0.0, 60.0, None),
    ]
    assert texts(figure) == ["RL +60%", "80%", "60%", "60%"]
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["Ours", "gpt", "o3"]
    colors = [to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert colors[2] == colors[3] == art_extensions.compat.benchmark_charts.GREY != colors[0]
    assert axes.get_ylabel() == "win (%)"


def test_comparison_options():
    df = table(("a", "val", 0, 30.0, 0.5), ("a", "val", 7, 20.0, 0.1234))
    figure = percentage_comparison_bar_chart(
        df, "reward", title="T", y_label="Y", perfect_score=40, num_decimals=1
    )
    assert texts(figure) == ["RL -10.0", "20.0"]  # above 1: not shares; a loss is told as one
    assert bars(figure) == [(0.0, 0.0, 20.0, None), (0.0, 20.0, 10.0, "//")]
    assert (figure.axes[0].get_title(), figure.axes[0].get_ylabel()) == ("T", "Y")
    assert {y for _, y in points(lines(figure)["Perfect score"])} == {40.0}
    share = percentage_comparison_bar_chart(df, "win", num_decimals=2, perfect_score=1.0)
    assert texts(share) == ["RL -37.66%", "12.34%"]
    assert {y for _, y in points(lines(share)["Perfect score"])} == {100.0}


def test_penalties_are_no_shares():
    df = table(("a", "val", 0, -100.0, 0.0), ("a", "val", 3, 0.5, 0.0))
    assert texts(percentage_comparison_bar_chart(df, "reward", num_decimals=1)) == ["RL +100.5", "0.5"]


@pytest.mark.slow
def test_settings_of_the_program_stay(tmp_path):
    before = dict(matplotlib.rcParams)
    figure = training_progress_chart(DF, "win")
    percentage_comparison_bar_chart(DF, "win").savefig(tmp_path / "bars.png")
    assert dict(matplotlib.rcParams) == before
    assert figure.number in pyplot.get_fignums()  # `plt.show()` shows it


def test_without_matplotlib(monkeypatch):
    monkeypatch.setattr("art.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install"):
        training_progress_chart(DF, "win")


def test_older_tools_say_what_to_use():
    import_module("art.utils.old_benchmarking.generate_line_graphs")  # it never hides the function
    from art.utils.old_benchmarking import generate_line_graphs
    from art.utils.old_benchmarking.load_benchmarked_models import load_benchmarked_models

    with pytest.raises(NotBuiltError, match="training_progress_chart"):
        generate_line_graphs([])
    with pytest.raises(NotBuiltError, match="load_trajectories"):
        load_benchmarked_models("p")
    with pytest.raises(ImportError):
        from art.utils.old_benchmarking import no_such_name  # noqa: F401
