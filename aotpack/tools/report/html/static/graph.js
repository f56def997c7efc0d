// The drawing of a method's graphs: forward on the left, backward on the right, saved tensors between them.
"use strict";
const graphView = (() => {
  const { element, svg, size } = aotpack;
  const all = aotpack.data("graphs");
  const canvas = document.getElementById("graph-canvas");
  const details = document.getElementById("graph-details");
  if (all === null || canvas === null) return null;
  const { texts, classes } = all;
  const lower = texts.map((text) => text.toLowerCase());
  const GAP = 190, TOP = 34, BUDGET = 44;
  const pen = document.createElement("canvas").getContext("2d");
  const families = getComputedStyle(document.body).fontFamily;

  let method, trees, open, selected = null, hits = new Set(), savedShown = true, view = { x: 0, y: 0, scale: 1 }, drawn = null;

  const short = (text, most = 34) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const operator = (op) => op.replace(/^aten\./, "").replace(/\.default$/, "");
  let savedBytes = new Map();

  function width(text, font) {
    pen.font = font.replace("FONT", families);
    return pen.measureText(text).width;
  }

  function titles(tree, item) {
    if (typeof item === "number") {
      const type = texts[tree.graph.type[item]];
      return [operator(texts[tree.graph.op[item]]), type];
    }
    if (item.items === undefined) return [item.label, item.type];
    const count = `${item.operations.length} ${item.operations.length === 1 ? "operation" : "operations"}`;
    const bytes = savedBytes.get(item);
    return [item.label + (item.kind ? `  ${item.kind}` : ""), bytes ? `${count}, ${size(bytes)} saved` : count];
  }

  const measures = (tree) => (item) => {
    const [title, note] = titles(tree, item).map((text) => short(text));
    const isGroup = item.items !== undefined;
    const widest = Math.max(width(title, `${isGroup ? 600 : 500} 12px FONT`), width(note, "10.5px FONT"));
    return { width: Math.max(64, widest + (isGroup ? 40 : 24)), height: note ? 40 : 28 };
  };

  /** Shows another method. */
  function choose(number) {
    method = all.methods[number];
    trees = ["forward", "backward"].filter((half) => method[half]).map((half) => layout.build(half, method[half], texts, classes));
    savedBytes = new Map();
    links = savedLinks();
    if (trees.length > 0) {
      for (const { from, bytes } of links) {
        for (let above = trees[0].parents[from]; above !== null; above = above.parent) savedBytes.set(above, (savedBytes.get(above) || 0) + bytes);
      }
      open = layout.opened(trees, BUDGET);
    }
    selected = null;
    hits = new Set();
    draw();
    fit(true);
    describe();
  }

  /** The saved tensors: the forward operation that makes each, the backward operations that read it, and bytes. */
  let links = [];
  function savedLinks() {
    if (!method.forward || !method.backward) return [];
    const readers = new Map();
    method.backward.takes.forEach((takes, i) => {
      for (const value of takes) if (value < 0) (readers.get(-1 - value) || readers.set(-1 - value, []).get(-1 - value)).push(i);
    });
    const found = [];
    method.backward.inputs.forEach(([kind, label, type, bytes, from], i) => {
      if (kind === "saved" && from >= 0) found.push({ from, to: readers.get(i) || [], bytes: bytes || 0, label: texts[label], type: texts[type] });
    });
    return found;
  }

  function draw() {
    canvas.replaceChildren();
    if (!trees.length) {
      canvas.append(element("p", { class: "soft empty" }, "This copy of the bundle has no graphs of this method."));
      return;
    }
    const placed = trees.map((tree) => layout.place(tree, open, measures(tree)));
    const tallest = Math.max(...placed.map((half) => half.height));
    const edges = svg("g", { class: "edges" }), boxes = svg("g"), curves = svg("g", { class: "curves" });
    const at = new Map();
    let left = 0;
    placed.forEach((half, i) => {
      const tree = trees[i];
      const top = TOP + (tree.half === "backward" ? tallest - half.height : 0);
      boxes.append(svg("text", { x: left + half.width / 2, y: 14, class: "lane" }, tree.half));
      for (const edge of half.edges) edges.append(line(tree, edge, left, top));
      for (const box of half.boxes) {
        const moved = { ...box, x: box.x + left, y: box.y + top, tree };
        at.set(key(tree, box.item), moved);
        boxes.append(drawnBox(moved));
      }
      left += half.width + GAP;
    });
    if (savedShown && trees.length > 1) curves.append(...savedCurves(at));
    const inner = svg("g", {}, boxes, edges, curves);
    const root = svg("svg", { class: "drawing", width: "100%", height: "100%", role: "presentation" },
      svg("defs", {}, arrow("arrow"), arrow("arrow-saved")), inner);
    canvas.append(root);
    drawn = { inner, at, width: left - GAP, height: tallest + TOP };
    moved();
  }

  function arrow(id) {
    return svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 .8 7 4 0 7.2z", class: id }));
  }

  const key = (tree, item) => (typeof item === "number" ? `${tree.half}/${item}` : item.items === undefined ? item.id : `${tree.half}/${item.id}`);

  function drawnBox(box) {
    const { tree, item, x, y } = box;
    const isGroup = item.items !== undefined, isPort = !isGroup && typeof item !== "number";
    const [title, note] = titles(tree, item);
    const id = key(tree, item);
    const kind = isGroup ? (box.open ? "module open" : "module") : isPort ? `port ${item.kind}` : "op";
    const hit = isGroup ? item.operations.some((i) => hits.has(`${tree.half}/${i}`)) : hits.has(id);
    const what = isGroup ? `module ${item.path || "model"}, ${note}` : `${title}, ${note}`;
    const node = svg("g", {
      class: `box ${kind}${id === selected ? " selected" : ""}${hit && !box.open ? " hit" : ""}`,
      transform: `translate(${x} ${y})`, tabindex: 0, role: "button", "data-key": id,
      "aria-label": `${tree.half}: ${what}`, "aria-expanded": isGroup ? String(box.open) : null,
    }, svg("title", {}, isGroup ? item.path || title : `${title}\n${note}`),
    svg("rect", { width: box.width, height: box.height, rx: isPort ? 14 : 7 }));
    if (isGroup) {
      node.append(svg("text", { x: 11, y: box.open ? 20 : 17, class: "sign" }, box.open ? "−" : "+"));
      const label = svg("text", { x: 24, y: box.open ? 20 : 17, class: "title" }, short(item.label));
      if (item.kind) label.append(svg("tspan", { class: "class", dx: 6 }, short(item.kind, 30)));
      node.append(label);
      if (!box.open) node.append(svg("text", { x: 24, y: 32, class: "small" }, short(note)));
    } else {
      node.append(svg("text", { x: box.width / 2, y: note ? 17 : 18, class: "title middle" }, short(title)));
      if (note) node.append(svg("text", { x: box.width / 2, y: 31, class: "small middle" }, short(note)));
    }
    const act = () => (isGroup ? toggle(tree, item) : select(id));
    node.addEventListener("click", (event) => { event.stopPropagation(); if (!dragged) act(); });
    node.addEventListener("focus", () => { if (id !== selected) select(id, false); });
    node.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
    return node;
  }

  function line(tree, edge, left, top) {
    const points = edge.points.map(({ x, y }) => [x + left, y + top]);
    let d = `M${points[0]}`;
    for (let i = 1; i < points.length - 1; i++) {
      const [x, y] = points[i], [nx, ny] = points[i + 1];
      d += i === points.length - 2 ? `Q${x} ${y} ${nx} ${ny}` : `Q${x} ${y} ${(x + nx) / 2} ${(y + ny) / 2}`;
    }
    if (points.length === 2) d += `L${points[1]}`;
    const types = edge.values.slice(0, 6).map((value) => (typeof value === "number" ? `${tree.graph.name[value]}: ${texts[tree.graph.type[value]]}` : value));
    return svg("path", { d, class: edge.values.length > 1 ? "edge many" : "edge", "marker-end": "url(#arrow)" }, svg("title", {}, types.join("\n")));
  }

  function savedCurves(at) {
    const bundles = new Map();
    for (const link of links) {
      const from = key(trees[0], layout.standing(trees[0], link.from, open));
      for (const reader of link.to) {
        const to = key(trees[1], layout.standing(trees[1], reader, open));
        const id = `${from}→${to}`;
        const known = bundles.get(id) || bundles.set(id, { from, to, bytes: 0, labels: [] }).get(id);
        if (known.labels.includes(link.label)) continue;
        known.bytes += link.bytes;
        known.labels.push(link.label);
      }
    }
    return [...bundles.values()].map(({ from, to, bytes, labels }) => {
      const a = at.get(from), b = at.get(to);
      const x1 = a.x + a.width, y1 = a.y + Math.min(a.height, 40) / 2, x2 = b.x, y2 = b.y + Math.min(b.height, 40) / 2;
      const bend = Math.max(50, (x2 - x1) / 2);
      const stroke = Math.min(5, 1 + Math.log10(1 + bytes / 1e4));
      return svg("path", {
        d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, class: `saved${selected === from || selected === to ? " strong" : ""}`,
        "stroke-width": stroke, "marker-end": "url(#arrow-saved)",
      }, svg("title", {}, `${size(bytes)} saved\n${labels.slice(0, 8).join("\n")}`));
    });
  }

  function toggle(tree, item) {
    const before = drawn.at.get(key(tree, item));
    if (open.has(item.id)) open.delete(item.id);
    else open.add(item.id);
    selected = key(tree, item);
    draw();
    const after = drawn.at.get(selected);
    view.x += (before.x - after.x) * view.scale;
    view.y += (before.y - after.y) * view.scale;
    moved();
    describe();
    focus(selected);
  }

  function focus(id) {
    const node = [...canvas.querySelectorAll("[data-key]")].find((each) => each.dataset.key === id);
    if (node) node.focus({ preventScroll: true });
  }

  function select(id, focused = true) {
    canvas.querySelectorAll(".box.selected").forEach((node) => node.classList.remove("selected"));
    selected = id;
    const node = [...canvas.querySelectorAll("[data-key]")].find((each) => each.dataset.key === id);
    if (node) node.classList.add("selected");
    describe();
    if (focused) focus(id);
  }

  /** Opens what is above an operation, selects it, and moves it to the middle. */
  function reveal(half, operation) {
    const tree = trees.find((each) => each.half === half);
    for (let above = tree.parents[operation]; above.parent !== null; above = above.parent) open.add(above.id);
    selected = `${half}/${operation}`;
    draw();
    const box = drawn.at.get(selected);
    view.scale = Math.max(view.scale, 0.8);
    const { clientWidth, clientHeight } = canvas;
    view.x = clientWidth / 2 - (box.x + box.width / 2) * view.scale;
    view.y = clientHeight / 2 - (box.y + box.height / 2) * view.scale;
    moved();
    describe();
  }

  // ------------------------------------------------------------ details

  function describe() {
    details.replaceChildren();
    if (selected === null) {
      details.append(element("p", { class: "soft" }, "Choose a box to see what it computes, what it reads and who reads it."));
      return;
    }
    const box = drawn.at.get(selected);
    if (!box) return;
    const { tree, item } = box;
    if (typeof item === "number") return operationDetails(tree, item);
    if (item.items === undefined) return rows(item.label, [["kind", { argument: "argument", tangent: "incoming gradient", result: "result" }[item.kind]], ["type", item.type]]);
    const counts = new Map();
    for (const i of item.operations) counts.set(tree.graph.op[i], (counts.get(tree.graph.op[i]) || 0) + 1);
    rows(item.path || item.label, [["class", item.kind], ["graph", tree.half], ["operations", String(item.operations.length)],
      ["saved", savedBytes.get(item) ? size(savedBytes.get(item)) : ""]]);
    const common = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12);
    details.append(element("h4", {}, "Operators"), element("ul", {}, ...common.map(([op, count]) => element("li", {}, `${count} × `, bdi(operator(texts[op]))))));
  }

  function operationDetails(tree, i) {
    const { graph } = tree;
    const bytes = graph.size[i];
    rows(texts[graph.op[i]], [["name", graph.name[i]], ["type", texts[graph.type[i]]], ["bytes", bytes === null ? "unknown" : size(bytes)],
      ["module", texts[graph.module[i]] || "(model)"], ["line", texts[graph.line[i]]], ["graph", tree.half]]);
    const reads = graph.takes[i].map((value) => (value >= 0 ? [tree.half, value] : graph.inputs[-1 - value]));
    list("Reads", reads.map((each) => (each.length === 2 ? jump(...each) : given(each))));
    const users = [];
    graph.takes.forEach((takes, user) => { if (takes.includes(i)) users.push(user); });
    list("Read by", users.slice(0, 30).map((user) => jump(tree.half, user)));
    if (tree.half === "forward") {
      const readers = links.filter((link) => link.from === i).flatMap((link) => link.to);
      list("Saved for", [...new Set(readers)].slice(0, 30).map((reader) => jump("backward", reader)));
    }
    list("Becomes", graph.outputs.filter(([kind, , value]) => value === i && kind !== "saved").map(([kind, label]) => element("span", {}, { result: "", mutation: "new value of ", gradient: "gradient of " }[kind], bdi(texts[label]))));
  }

  function given([kind, label, type, , from]) {
    if (kind === "saved" && from >= 0) return element("span", {}, jump("forward", from), " (saved)");
    return element("span", {}, `${kind} `, bdi(texts[label]), " ", element("small", {}, texts[type]));
  }

  function jump(half, i) {
    const tree = trees.find((each) => each.half === half);
    const button = element("button", { type: "button", class: "jump" }, bdi(tree.graph.name[i]));
    button.addEventListener("click", () => reveal(half, i));
    return button;
  }

  const bdi = (text) => element("bdi", { class: "mono" }, text);

  function rows(title, pairs) {
    details.append(element("h3", {}, bdi(title)), element("dl", { class: "facts" }, ...pairs.filter(([, text]) => text).flatMap(([label, text]) => [element("dt", {}, label), element("dd", {}, bdi(text))])));
  }

  function list(title, items) {
    if (items.length) details.append(element("h4", {}, title), element("ul", {}, ...items.map((item) => element("li", {}, item))));
  }

  // ------------------------------------------------------------ search

  function search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const count = document.getElementById("graph-count"), results = document.getElementById("graph-results");
    hits = new Set();
    results.replaceChildren();
    results.hidden = words.length === 0;
    if (words.length === 0) {
      count.textContent = "";
      return draw();
    }
    const matching = words.map((word) => lower.map((text) => text.includes(word)));
    for (const { half, graph } of trees) {
      for (let i = 0; i < graph.name.length; i++) {
        const fields = [graph.op[i], graph.module[i], graph.line[i]];
        const found = words.every((word, w) => fields.some((field) => matching[w][field]) || graph.name[i].toLowerCase().includes(word));
        if (!found) continue;
        hits.add(`${half}/${i}`);
        if (results.childElementCount < 60) results.append(element("li", {}, result(half, graph, i)));
      }
    }
    count.textContent = hits.size === 1 ? "1 operation found" : `${hits.size.toLocaleString("en")} operations found`;
    results.hidden = hits.size === 0;
    draw();
  }

  function result(half, graph, i) {
    const button = element("button", { type: "button", class: "result" }, element("span", { class: "tag plain" }, half), " ", bdi(operator(texts[graph.op[i]])),
      " ", element("small", {}, bdi([texts[graph.module[i]], texts[graph.line[i]]].filter(Boolean).join("  "))));
    button.addEventListener("click", () => reveal(half, i));
    return button;
  }

  // ------------------------------------------------------------ moving and zooming

  function moved() {
    if (drawn) drawn.inner.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
  }

  /** Shows all. With `readable`, text stays large enough to read while the width fits, and the top is shown. */
  function fit(readable = false) {
    if (!drawn) return;
    const { clientWidth, clientHeight } = canvas;
    const wide = (clientWidth - 40) / drawn.width;
    const scale = Math.min(wide, (clientHeight - 30) / drawn.height, 1.1);
    view.scale = Math.max(readable === true ? Math.min(0.85, wide) : 0, scale, 0.03);
    view.x = Math.max(20, (clientWidth - drawn.width * view.scale) / 2);
    view.y = Math.max(12, (clientHeight - drawn.height * view.scale) / 2);
    moved();
  }

  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const scale = Math.min(3, Math.max(0.02, view.scale * factor));
    view.x = x - ((x - view.x) * scale) / view.scale;
    view.y = y - ((y - view.y) * scale) / view.scale;
    view.scale = scale;
    moved();
  }

  let dragged = false, held = null;
  canvas.addEventListener("pointerdown", (event) => { held = { x: event.clientX, y: event.clientY, at: { ...view } }; dragged = false; });
  addEventListener("pointermove", (event) => {
    if (held === null) return;
    const dx = event.clientX - held.x, dy = event.clientY - held.y;
    if (Math.abs(dx) + Math.abs(dy) > 4) dragged = true;
    view.x = held.at.x + dx;
    view.y = held.at.y + dy;
    if (dragged) moved();
  });
  addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas && !canvas.contains(document.activeElement)) return;
    event.preventDefault();
    const { left, top } = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 400), event.clientX - left, event.clientY - top);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (step) { view.x += step[0]; view.y += step[1]; moved(); }
    else if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") fit();
    else return;
    event.preventDefault();
  });

  const button = (id, act) => document.getElementById(id).addEventListener("click", act);
  button("graph-in", () => zoom(1.25));
  button("graph-out", () => zoom(0.8));
  button("graph-fit", () => fit());
  button("graph-collapse", () => { open = new Set(); draw(); fit(true); });
  button("graph-expand", () => {
    const shown = Math.max(40, canvas.querySelectorAll("[data-key]").length);
    open = new Set([...open, ...layout.opened(trees, shown * 2)]);
    draw();
    fit();
  });
  button("graph-saved", (event) => {
    savedShown = !savedShown;
    event.currentTarget.setAttribute("aria-pressed", savedShown);
    draw();
  });
  let waiting = 0;
  const input = document.getElementById("graph-search");
  input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => search(input.value), 120); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; search(""); }
    if (event.key === "Enter") document.querySelector("#graph-results button")?.click();
  });
  document.getElementById("graph-method")?.addEventListener("change", (event) => { input.value = ""; document.getElementById("graph-results").hidden = true; choose(Number(event.target.value)); });

  choose(0);
  addEventListener("load", () => fit(true));
  return { reveal, search, select, state: () => ({ open: [...open], hits: hits.size, selected, boxes: canvas.querySelectorAll("[data-key]").length }) };
})();
