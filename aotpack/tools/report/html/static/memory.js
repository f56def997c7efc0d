// The memory picture: live bytes over the step, and an icicle of what is saved.
"use strict";
(() => {
  const { size, colour } = aotpack;
  const all = aotpack.data("memory") || {};

  function plot(host, found) {
    let chart = null;
    const count = found.saved.length;
    const xs = Array.from({ length: count }, (_, i) => i);
    const saved = found.saved, gradients = saved.map((value, i) => value + found.gradients[i]);
    const total = gradients.map((value, i) => value + found.others[i]);
    const draw = () => {
      if (host.clientWidth === 0) return;
      if (chart) chart.destroy();
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: `11px ${getComputedStyle(document.body).fontFamily}` };
      const step = uPlot.paths.stepped({ align: 1 });
      const area = (label, name, value) => ({ label, stroke: colour(name), fill: `${colour(name)}40`, width: 1.5, paths: step, points: { show: false }, value });
      const part = (values) => (_, __, ___, i) => (i === null ? "" : size(values[i]));
      chart = new uPlot({
        width: host.clientWidth, height: 260,
        scales: { x: { time: false } },
        axes: [
          { ...axis, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")), label: "operation", labelSize: 20, labelFont: axis.font },
          { ...axis, size: 74, values: (_, ticks) => ticks.map(size) },
        ],
        series: [
          { label: "operation", value: (_, i) => (i === null ? "" : `${i < found.forward ? "forward" : "backward"} ${(i < found.forward ? i : i - found.forward) + 1}`) },
          area("other values", "--c1", part(found.others)),
          area("gradients", "--c3", part(found.gradients)),
          area("saved", "--saved", part(found.saved)),
        ],
        bands: [{ series: [1, 2] }, { series: [2, 3] }], // each colour fills its own part alone
        hooks: { draw: [(self) => marks(self, found)] },
      }, [xs, total, gradients, saved], host);
    };
    aotpack.themed(draw);
    new ResizeObserver(draw).observe(host);
  }

  /** Where the backward starts, and the peak. */
  function marks(self, found) {
    const { ctx, bbox } = self;
    ctx.save();
    ctx.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textAlign = "left";
    ctx.fillStyle = colour("--soft");
    ctx.strokeStyle = colour("--strong");
    if (found.forward > 0 && found.forward < found.saved.length) {
      const x = self.valToPos(found.forward, "x", true);
      ctx.setLineDash([4, 4]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText("backward", x + 6, bbox.top + 12 * devicePixelRatio);
    }
    if (found.peak >= 0) {
      const total = found.saved[found.peak] + found.gradients[found.peak] + found.others[found.peak];
      const x = self.valToPos(found.peak, "x", true), y = self.valToPos(total, "y", true);
      ctx.fillStyle = colour("--bad");
      ctx.beginPath();
      ctx.arc(x, y, 4 * devicePixelRatio, 0, 7);
      ctx.fill();
      const right = x > bbox.left + bbox.width / 2;
      ctx.textAlign = right ? "right" : "left";
      ctx.fillText(`peak ${size(total)}`, x + (right ? -8 : 8) * devicePixelRatio, y + 4 * devicePixelRatio);
    }
    ctx.restore();
  }

  for (const host of document.querySelectorAll("[data-memory]")) plot(host, all[host.dataset.memory]);
  const drawn = new Set();
  const icicles = () => {
    for (const host of document.querySelectorAll("[data-icicle]")) {
      if (drawn.has(host) || host.clientWidth === 0) continue;
      drawn.add(host);
      icicle.draw(host, all[host.dataset.icicle].tensors, size, "saved for the backward");
    }
  };
  icicles();
  document.addEventListener("aotpack-tab", icicles);
})();
