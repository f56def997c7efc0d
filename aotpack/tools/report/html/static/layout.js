// Graphs as trees of modules, and the layout of what is open. No drawing here.
"use strict";
const layout = (() => {
  const MOST = 120; // items of one box; more are split into boxes of consecutive operations
  const TITLE = 30, PAD = 14;

  /** The tree of modules of one graph. Items of a group are groups, numbers of operations, and ports. */
  function build(half, graph, texts, classes) {
    const root = group(half, "", null, "");
    const groups = new Map([["", root]]);
    const parents = new Array(graph.name.length);
    function module(path) {
      let found = groups.get(path);
      if (found === undefined) {
        const cut = path.lastIndexOf(".");
        const parent = module(cut < 0 ? "" : path.slice(0, cut));
        found = group(half, path, parent, path.slice(cut + 1), classes[path] || "");
        groups.set(path, found);
        parent.items.push(found);
      }
      return found;
    }
    for (let i = 0; i < graph.name.length; i++) {
      const parent = module(texts[graph.module[i]]);
      parents[i] = parent;
      parent.items.push(i);
      for (let above = parent; above !== null; above = above.parent) above.operations.push(i);
    }
    for (const each of [...groups.values()]) split(each, parents);
    return { half, graph, root, parents, ports: ports(half, graph, texts) };
  }

  function group(half, path, parent, label, kind = "") {
    return { half, path, id: path, parent, label, kind, items: [], operations: [] };
  }

  /** Splits a box with too many items into boxes of consecutive ones. */
  function split(whole, parents) {
    let level = 0;
    while (whole.items.length > MOST) {
      const size = Math.ceil(whole.items.length / Math.ceil(whole.items.length / MOST));
      const parts = [];
      for (let start = 0; start < whole.items.length; start += size) {
        const part = group(whole.half, whole.path, whole, "");
        part.items = whole.items.slice(start, start + size);
        part.operations = part.items.flatMap((item) => (typeof item === "number" ? [item] : item.operations));
        part.id = `${whole.half}:${whole.path}#${level}.${parts.length}`;
        part.label = `${part.operations.length} operations from ${part.operations[0] + 1}`;
        for (const item of part.items) {
          if (typeof item === "number") parents[item] = part;
          else item.parent = part;
        }
        parts.push(part);
      }
      whole.items = parts;
      level++;
    }
  }

  /** Arguments, incoming gradients and results: boxes at the ends of a graph. Parameters are not drawn. */
  function ports(half, graph, texts) {
    const users = new Map();
    graph.takes.forEach((takes, i) => {
      for (const value of takes) if (value < 0) (users.get(-1 - value) || users.set(-1 - value, []).get(-1 - value)).push(i);
    });
    const found = [];
    const shown = half === "forward" ? ["argument"] : ["tangent"];
    graph.inputs.forEach(([kind, label, type], i) => {
      if (shown.includes(kind) && users.has(i)) {
        found.push({ id: `${half}-in-${i}`, kind, label: texts[label], type: texts[type], to: users.get(i), from: [] });
      }
    });
    graph.outputs.forEach(([kind, label, value], i) => {
      if (kind === "result" && value >= 0) found.push({ id: `${half}-out-${i}`, kind, label: texts[label], type: "", to: [], from: [value] });
    });
    return found.length > 40 ? [] : found;
  }

  /** The box that stands for an operation while only the groups in `open` are open. */
  function standing(tree, operation, open) {
    let found = operation;
    for (let above = tree.parents[operation]; above.parent !== null; above = above.parent) if (!open.has(above.id)) found = above;
    return found;
  }

  /** Places the open boxes of one graph. Returns boxes and edges with absolute positions. */
  function place(tree, open, measure) {
    const boxes = [], edges = [];
    const inside = arrange(tree, tree.root, open, measure);
    flatten(inside, 0, 0, boxes, edges);
    return { boxes, edges, width: inside.width, height: inside.height };
  }

  function arrange(tree, whole, open, measure) {
    const owner = new Map();
    const nodes = whole.items.map((item, i) => {
      const operations = typeof item === "number" ? [item] : item.operations;
      for (const operation of operations) owner.set(operation, i);
      if (typeof item !== "number" && open.has(item.id)) {
        const inside = arrange(tree, item, open, measure);
        const least = measure(item).width + 30;
        return { item, inside, width: Math.max(inside.width + 2 * PAD, least), height: inside.height + TITLE + PAD };
      }
      return { item, ...measure(item) };
    });
    const links = new Map();
    const link = (a, b, text) => {
      if (a === b) return;
      const key = a * 100003 + b;
      const known = links.get(key);
      if (known) known.values.add(text);
      else links.set(key, { a, b, values: new Set([text]) });
    };
    for (const operation of whole.operations) {
      for (const value of tree.graph.takes[operation]) {
        if (value >= 0 && owner.has(value)) link(owner.get(value), owner.get(operation), value);
      }
    }
    if (whole.parent === null) {
      for (const port of tree.ports) {
        const i = nodes.push({ item: port, ...measure(port) }) - 1;
        for (const operation of port.to) link(i, owner.get(operation), port.id);
        for (const operation of port.from) link(owner.get(operation), i, operation);
      }
    }
    return solved(nodes, [...links.values()], tree.half);
  }

  /** Runs dagre on one level. What dagre cannot lay out stands in a column. */
  function solved(nodes, links, half) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: half === "forward" ? "TB" : "BT", nodesep: 18, ranksep: 26, edgesep: 8, marginx: 0, marginy: 0 });
    graph.setDefaultEdgeLabel(() => ({}));
    nodes.forEach((node, i) => graph.setNode(String(i), { width: node.width, height: node.height }));
    for (const { a, b } of links) graph.setEdge(String(a), String(b), {});
    try {
      dagre.layout(graph);
    } catch {
      let y = 0;
      nodes.forEach((node, i) => {
        Object.assign(graph.node(String(i)), { x: node.width / 2, y: y + node.height / 2 });
        y += node.height + 20;
      });
    }
    let width = 0, height = 0;
    nodes.forEach((node, i) => {
      const { x, y } = graph.node(String(i));
      node.x = x - node.width / 2;
      node.y = y - node.height / 2;
      width = Math.max(width, node.x + node.width);
      height = Math.max(height, node.y + node.height);
    });
    const edges = links.map(({ a, b, values }) => {
      const points = graph.edge(String(a), String(b)).points || [graph.node(String(a)), graph.node(String(b))];
      for (const point of points) width = Math.max(width, point.x), height = Math.max(height, point.y);
      return { points, values: [...values], from: nodes[a].item, to: nodes[b].item };
    });
    return { nodes, edges, width, height };
  }

  function flatten(level, left, top, boxes, edges) {
    for (const edge of level.edges) edges.push({ ...edge, points: edge.points.map(({ x, y }) => ({ x: x + left, y: y + top })) });
    for (const node of level.nodes) {
      boxes.push({ item: node.item, open: Boolean(node.inside), x: left + node.x, y: top + node.y, width: node.width, height: node.height });
      if (node.inside) {
        const shift = (node.width - node.inside.width) / 2;
        flatten(node.inside, left + node.x + shift, top + node.y + TITLE, boxes, edges);
      }
    }
  }

  /** Opens groups from the top while all boxes stay few. */
  function opened(trees, budget) {
    const open = new Set();
    let shown = Math.max(...trees.map((tree) => tree.root.items.length));
    let level = trees.map((tree) => tree.root.items.filter((item) => typeof item !== "number"));
    while (level.some((groups) => groups.length)) {
      const next = trees.map(() => []);
      const ids = [...new Set(level.flat().map((each) => each.id))];
      for (const id of ids) {
        const alike = level.flat().filter((each) => each.id === id);
        const more = Math.max(...alike.map((each) => each.items.length));
        if (shown + more > budget || open.has(id)) continue;
        open.add(id);
        shown += more;
        level.forEach((groups, i) => {
          for (const each of groups) if (each.id === id) next[i].push(...each.items.filter((item) => typeof item !== "number"));
        });
      }
      level = next;
    }
    return open;
  }

  return { build, place, standing, opened };
})();
