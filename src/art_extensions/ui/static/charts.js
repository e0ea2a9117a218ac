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
    const line = curve.points
      ? { paths: () => null, points: { show: true, size: 9, fill: stroke } }
      : { spanGaps: true, points: { show: few, size: 5, fill: stroke } };
    return [
      { label: curve.label, stroke, width: 2, ...line, value: (u, v) => (v === null || v === undefined ? "–" : Number(v.toPrecision(4)).toString()) },
      ...(curve.low.length ? [{ ...hidden, label: "low" }, { ...hidden, label: "high" }] : []),
    ];
  };

  // The interval of each point: a bar from `low` to `high`, which lie behind series `at`.
  const drawBars = (u, at, stroke) => {
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    u.data[0].forEach((step, place) => {
      const [low, high] = [u.data[at + 1][place], u.data[at + 2][place]];
      if (low === null || high === null || !u.series[at].show) return;
      const x = u.valToPos(step, "x", true);
      ctx.moveTo(x, u.valToPos(low, "y", true));
      ctx.lineTo(x, u.valToPos(high, "y", true));
    });
    ctx.stroke();
    ctx.restore();
  };

  const draw = (node) => {
    const { steps, curves } = JSON.parse(node.dataset.chart);
    const data = [steps], series = [{ label: "step" }], bands = [], bars = [];
    curves.forEach((curve, number) => {
      const at = series.length;
      series.push(...seriesOf(curve, number));
      data.push(curve.values);
      if (curve.low.length) {
        data.push(curve.low, curve.high);
        const stroke = colour(`--curve-${(number % CURVES) + 1}`);
        if (curve.points) bars.push((u) => drawBars(u, at, stroke));
        else bands.push({ series: [at + 2, at + 1], fill: stroke + "2e" });
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
        ...size(), series, bands, hooks: { draw: bars }, legend: { show: tall, live: true }, cursor: { y: false, points: { size: 7 } },
        padding: [8, 8, 0, 0], scales: { x: { time: false } },
        axes: [{ ...axis, values: whole, size: 28 }, { ...axis, values: short, size: 52 }],
      },
      data, node,
    );
    for (const row of chart.root.querySelectorAll(".u-legend .u-series"))
      if (["low", "high"].includes(row.textContent.trim().replace(/[^a-z]/g, ""))) row.hidden = true;
    return () => chart.setSize(size());
  };

  const drawn = new Map([...document.querySelectorAll("[data-chart]")].map((node) => [node, draw(node)]));
  document.addEventListener("art-chart", (event) => drawn.set(event.target, draw(event.target)));
  const all = (act) => {
    for (const [node, resize] of drawn) node.isConnected ? act(node, resize) : drawn.delete(node);
  };
  addEventListener("resize", () => all((node, resize) => resize()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all((node) => drawn.set(node, draw(node))));
}
