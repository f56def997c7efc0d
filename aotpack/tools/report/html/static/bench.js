// Plots of a benchmark: a bar for each contender's median, and a dot for each single measurement.
"use strict";
(() => {
  const { size, time, colour, themed } = aotpack;
  const all = aotpack.data("bench");
  const SPREAD = 0.5; // the width that the dots of one contender take, of the distance between two

  const WIDE = 20; // a ratio of medians at which a linear axis hides the small ones
  const BAR = 0.62; // the width of a bar, of the distance between two

  function bars(self, series) {
    const path = new Path2D(), zero = self.valToPos(0, "y", true);
    self.data[series].forEach((value, i) => {
      if (value === null) return;
      const [left, right] = [-BAR / 2, BAR / 2].map((shift) => self.valToPos(self.data[0][i] + shift, "x", true));
      const top = self.valToPos(value, "y", true);
      path.rect(left, top, right - left, zero - top);
    });
    return { stroke: path, fill: path };
  }

  /** uPlot wants all x in one ascending list: the bars' places, and between them the dots'. */
  function columns(found) {
    const points = [];
    found.middle.forEach((value, i) => points.push([i, value, null]));
    found.runs.forEach((runs, i) => runs.forEach((value, j) => points.push([i + SPREAD * ((j + 0.5) / runs.length - 0.5) + 1e-6, null, value])));
    points.sort((a, b) => a[0] - b[0]);
    return [0, 1, 2].map((column) => points.map((point) => point[column]));
  }

  function plot(host) {
    const key = host.dataset.bench, found = all[key], text = key === "peak_memory" ? size : time;
    const button = document.querySelector(`[data-logarithmic="${key}"]`);
    const data = columns(found);
    let chart = null, logarithmic = Math.max(...found.middle) > WIDE * Math.min(...found.middle);
    button.setAttribute("aria-pressed", logarithmic);
    const draw = () => {
      if (host.clientWidth === 0) return;
      if (chart) chart.destroy();
      const font = `12px ${getComputedStyle(document.body).fontFamily}`;
      const axis = { stroke: colour("--soft"), font, grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
      const short = (name) => (host.clientWidth / found.names.length < 150 && name.length > 18 ? `${name.slice(0, 17)}…` : name);
      const y = logarithmic ? { distr: 3 } : { range: (_, least, most) => [0, most * 1.08] };
      chart = new uPlot({
        width: host.clientWidth, height: 280,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false, range: () => [-0.6, found.names.length - 0.4] }, y },
        axes: [
          { ...axis, grid: { show: false }, splits: () => found.names.map((_, i) => i), values: () => found.names.map(short) },
          { ...axis, size: 76, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : text(tick))) },
        ],
        series: [
          {},
          { label: "median", stroke: colour("--accent"), fill: `${colour("--accent")}33`, width: 1.5, paths: logarithmic ? () => null : bars, points: { show: logarithmic, size: 14, width: 2 } },
          { label: "run", stroke: colour("--saved"), paths: () => null, points: { show: true, size: 6, fill: colour("--saved"), stroke: colour("--saved") } },
        ],
      }, data, host);
    };
    button.addEventListener("click", () => {
      logarithmic = !logarithmic;
      button.setAttribute("aria-pressed", logarithmic);
      draw();
    });
    themed(draw);
    new ResizeObserver(draw).observe(host);
  }

  document.querySelectorAll("[data-bench]").forEach(plot);
})();
