// Curves with their bands, drawn by uPlot from the numbers in `data-chart`.
"use strict";
{
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(name).trim();
  const CURVES = 6;

  const seriesOf = (curve, number) => {
    const stroke = colour(`--curve-${(number % CURVES) + 1}`);
    const hidden = { show: true, stroke: "transparent", width: 0, points: { show: false } };
    const few = curve.values.filter((value) => value !== null).length < 40;
    return [
      { label: curve.label, stroke, width: 2, spanGaps: true, points: { show: few, size: 5, fill: stroke }, value: (u, v) => (v === null || v === undefined ? "–" : Number(v.toPrecision(4)).toString()) },
      ...(curve.low.length ? [{ ...hidden, label: "low" }, { ...hidden, label: "high" }] : []),
    ];
  };

  const draw = (node) => {
    const { steps, curves } = JSON.parse(node.dataset.chart);
    const data = [steps], series = [{ label: "step" }], bands = [];
    curves.forEach((curve, number) => {
      const at = series.length;
      series.push(...seriesOf(curve, number));
      data.push(curve.values);
      if (curve.low.length) {
        data.push(curve.low, curve.high);
        bands.push({ series: [at + 2, at + 1], fill: colour(`--curve-${(number % CURVES) + 1}`) + "2e" });
      }
    });
    const tall = node.classList.contains("tall");
    const axis = {
      stroke: colour("--soft"), font: "12px " + colour("--sans"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
    };
    const size = () => ({ width: node.clientWidth, height: node.clientHeight - (tall ? 34 : 0) });
    const whole = (u, values) => values.map((value) => (Number.isInteger(value) ? value : ""));
    const short = (u, values) => values.map((value) => (value === 0 ? "0" : Math.abs(value) < 0.001 ? value.toExponential(0) : Number(value.toPrecision(4)).toString()));
    node.replaceChildren();
    const chart = new uPlot(
      {
        ...size(), series, bands, legend: { show: tall, live: true }, cursor: { y: false, points: { size: 7 } },
        padding: [8, 8, 0, 0], scales: { x: { time: false } },
        axes: [{ ...axis, values: whole, size: 28 }, { ...axis, values: short, size: 52 }],
      },
      data, node,
    );
    for (const row of chart.root.querySelectorAll(".u-legend .u-series"))
      if (["low", "high"].includes(row.textContent.trim().replace(/[^a-z]/g, ""))) row.hidden = true;
    return () => chart.setSize(size());
  };

  const nodes = [...document.querySelectorAll("[data-chart]")];
  let resizes = nodes.map(draw);
  addEventListener("resize", () => resizes.forEach((resize) => resize()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { resizes = nodes.map(draw); });
}
