"""Names of older benchmark tools, and what does their work today."""

from __future__ import annotations

OLDER_NAMES = {
    "BenchmarkedModelKey": "`art.utils.benchmarking.BenchmarkModelKey` names a model of a table or a chart",
    "BenchmarkedModel": "`await art.utils.benchmarking.load_trajectories(project)` gives the table",
    "load_benchmarked_models": "`await art.utils.benchmarking.load_trajectories(project)` gives the table",
    "generate_comparison_table": "`await art.utils.benchmarking.load_latest_metrics(project)` has them",
    "generate_line_graphs": "`art.utils.benchmarking.training_progress_chart(df, metric)` draws them",
    "display_image_grid": "save the charts with `figure.savefig(...)`, or lay them out with matplotlib",
}
