// An icicle of sizes by a tree of names: what is saved by module, or time by module and line. A click zooms.
"use strict";
const icicle = (() => {
  const { element, svg } = aotpack;
  const ROW = 26, COLOURS = 7;

  /**
   * Draws rows of [path, leaf, value] into `host`. `path` has parts separated by dots.
   * `show` turns a value into text. `root` names the whole.
   */
  function draw(host, rows, show, root) {
    const tree = grown(rows, root);
    let focus = null;
    const label = element("p", { class: "soft trail", role: "status" });
    const drawing = svg("svg", { class: "icicle-drawing", role: "group", "aria-label": `${root} by module` });
    host.replaceChildren(label, drawing);

    function paint() {
      const width = host.clientWidth || 800;
      const whole = d3.hierarchy(focus || tree, (node) => node.children).sum((node) => node.value || 0).sort((a, b) => b.value - a.value);
      d3.partition().size([width, (whole.height + 1) * ROW])(whole);
      const all = whole.descendants().filter((node) => node.x1 - node.x0 >= 1.5);
      drawing.setAttribute("viewBox", `0 0 ${width} ${(whole.height + 1) * ROW}`);
      drawing.setAttribute("height", (whole.height + 1) * ROW);
      drawing.replaceChildren(...all.map((node) => box(node, whole)));
      label.textContent = `${(focus || tree).path || root}: ${show(whole.value)}${focus ? " (click its top row to go back)" : ""}`;
    }

    function box(node, whole) {
      const wide = node.x1 - node.x0, name = node.data.name;
      const share = ((100 * node.value) / whole.value).toFixed(1);
      const text = `${node.data.path || name}: ${show(node.value)}, ${share} %`;
      const found = svg("g", { class: `cell shade-${node.depth === 0 ? "root" : shade(node) % COLOURS}`, transform: `translate(${node.x0} ${node.depth * ROW})`, tabindex: 0, role: "button", "aria-label": text },
        svg("title", {}, text), svg("rect", { width: Math.max(0.5, wide - 1), height: ROW - 1, rx: 3 }));
      const most = Math.floor((wide - 10) / 6.6);
      if (most >= 3) found.append(svg("text", { x: 6, y: 17 }, name.length > most ? `${name.slice(0, most - 1)}…` : name));
      const act = () => { focus = node.depth === 0 ? (focus && parent(tree, focus)) : node.data.children ? node.data : focus; if (focus === tree) focus = null; paint(); };
      found.addEventListener("click", act);
      found.addEventListener("keydown", (event) => { if (event.key === "Enter") act(); });
      return found;
    }
    paint();
    new ResizeObserver(paint).observe(host);
  }

  function shade(node) {
    let top = node;
    while (top.depth > 1) top = top.parent;
    return top.parent ? top.parent.children.indexOf(top) : 0;
  }

  function parent(tree, wanted) {
    for (const child of tree.children || []) {
      if (child === wanted) return tree;
      const found = parent(child, wanted);
      if (found) return found;
    }
    return null;
  }

  function grown(rows, root) {
    const tree = { name: root, path: "", children: [], known: new Map() };
    for (const [path, leaf, value] of rows) {
      let at = tree, sofar = "";
      for (const part of path === "" ? [] : path.split(".")) {
        sofar = sofar ? `${sofar}.${part}` : part;
        let next = at.known.get(part);
        if (next === undefined) at.known.set(part, (next = { name: part, path: sofar, children: [], known: new Map() })), at.children.push(next);
        at = next;
      }
      at.children.push({ name: leaf, path: path ? `${path}  ${leaf}` : leaf, value });
    }
    return tree;
  }

  return { draw };
})();
