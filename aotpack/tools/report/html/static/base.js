// What every page has: the theme, the navigation, sorted and filtered tables, and helpers for the other scripts.
"use strict";
const aotpack = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  /** The JSON document `name` of the page. */
  function data(name) {
    const found = document.getElementById(`data-${name}`);
    return found === null ? null : JSON.parse(found.textContent);
  }

  /** Makes an element. Strings among the children become text, never HTML. */
  function element(name, attributes = {}, ...children) {
    return filled(document.createElement(name), attributes, children);
  }

  /** Makes an SVG element. */
  function svg(name, attributes = {}, ...children) {
    return filled(document.createElementNS(SVG, name), attributes, children);
  }

  function filled(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }

  /** A number of bytes in a readable decimal unit, as in the command line's tables. */
  function size(count) {
    if (count < 1000) return `${count} B`;
    let value = count;
    for (const unit of ["kB", "MB", "GB", "TB"]) {
      value /= 1000;
      if (value < 999.5 || unit === "TB") return `${Number(value.toPrecision(3))} ${unit}`;
    }
  }

  /** A time in seconds in a readable unit. */
  function time(seconds) {
    if (seconds < 0.9995e-3) return `${Math.round(seconds * 1e6)} µs`;
    if (seconds < 0.9995) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
    return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  }

  /** The value of a CSS variable, for what cannot use it in a style sheet. */
  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /** Calls `draw` now, and again whenever the theme changes. */
  function themed(draw) {
    listeners.push(draw);
    draw();
  }

  const listeners = [];
  const changed = () => listeners.forEach((draw) => draw());

  function theme() {
    const root = document.documentElement;
    const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    try {
      const kept = localStorage.getItem("aotpack-theme");
      if (kept === "light" || kept === "dark") root.dataset.theme = kept;
    } catch { /* a file without storage */ }
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("aotpack-theme", root.dataset.theme); } catch { /* as above */ }
      changed();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  }

  /** Marks the section in view in the navigation. */
  function contents() {
    const links = new Map([...document.querySelectorAll("nav.contents a")].map((a) => [a.getAttribute("href").slice(1), a]));
    const sections = [...document.querySelectorAll("main > section")];
    function mark() {
      const line = 140;
      const passed = sections.filter((s) => s.getBoundingClientRect().top <= line);
      const end = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
      const current = end ? sections.at(-1) : passed.at(-1) || sections[0];
      for (const [id, link] of links) {
        if (current && id === current.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
    addEventListener("scroll", mark, { passive: true });
    mark();
  }

  /** Tables: a click on a heading sorts; an input with data-filter shows the rows that have its text. */
  function tables() {
    for (const table of document.querySelectorAll("table[data-sortable]")) {
      for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
        if (head.textContent.trim() === "") continue;
        const button = element("button", { type: "button", class: "sort" }, ...head.childNodes);
        head.append(button);
        button.addEventListener("click", () => sort(table, head, column));
      }
    }
    for (const input of document.querySelectorAll("input[data-filter]")) {
      const table = document.getElementById(input.dataset.filter);
      const count = document.getElementById(`${input.dataset.filter}-count`);
      input.addEventListener("input", () => {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        let shown = 0;
        for (const row of table.tBodies[0].rows) {
          const text = row.textContent.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
          shown += !row.hidden;
        }
        if (count) count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
      });
    }
  }

  function sort(table, head, column) {
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const rows = [...table.tBodies[0].rows];
    const numbers = rows.every((row) => !Number.isNaN(Number(key(row))));
    rows.sort((a, b) => (numbers ? Number(key(a)) - Number(key(b)) : key(a).localeCompare(key(b), "en", { numeric: true })));
    if (down) rows.reverse();
    table.tBodies[0].append(...rows);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  /** Tabs: arrow keys move between them. */
  function tabs() {
    for (const list of document.querySelectorAll("[role=tablist]")) {
      const all = [...list.querySelectorAll("[role=tab]")];
      const choose = (tab) => {
        for (const other of all) {
          const chosen = other === tab;
          other.setAttribute("aria-selected", chosen);
          other.tabIndex = chosen ? 0 : -1;
          document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
        }
        document.dispatchEvent(new CustomEvent("aotpack-tab", { detail: tab.id }));
      };
      all.forEach((tab, index) => {
        tab.addEventListener("click", () => choose(tab));
        tab.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!step) return;
          const next = all[(index + step + all.length) % all.length];
          choose(next);
          next.focus();
        });
      });
    }
  }

  theme();
  contents();
  tables();
  tabs();
  return { data, element, svg, size, time, colour, themed };
})();
