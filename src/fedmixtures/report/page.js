// The moving parts of the report: pick a node, slide through the rounds, sort the table.
// All content is in the page; nothing is fetched.
"use strict";
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const { nodes, edges, rounds, views, shape } = content;
  const n = shape.nodes, k = shape.components;
  const UNIT = 32767, MEAN_UNIT = 10000, SIDE = 400, COLOURS = 8, GROUPS = 9;
  const byId = (id) => document.getElementById(id);
  const state = { node: 0, stop: rounds.length - 1, view: 0, timer: null };

  // ---- packed numbers -------------------------------------------------------------------------
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const unpacked = views.map(() => ({}));
  function packed(kind) {
    const kept = unpacked[state.view], text = views[state.view][kind];
    if (!kept[kind]) {
      const raw = bytes(text);
      kept[kind] = kind === "density" ? raw : new Int16Array(raw.buffer);
    }
    return kept[kind];
  }

  // Component c of a node at a stop of the slider: weight, and its two-sigma ellipse on a square.
  function ellipse(node, stop, c, side) {
    const at = (((stop * n) + node) * k + c) * 6, p = packed("components");
    const weight = p[at] / UNIT;
    const sx = (2 * side * p[at + 3]) / UNIT, sy = (2 * side * p[at + 4]) / UNIT;
    const cross = (-p[at + 5] / UNIT) * sx * sy; // y points down on the screen
    const a = sx * sx, b = sy * sy, half = (a + b) / 2;
    const root = Math.sqrt(Math.max(((a - b) / 2) ** 2 + cross * cross, 0));
    const angle = (Math.atan2(half + root - a, cross || 1e-12) * 180) / Math.PI;
    return {
      weight,
      x: (side * p[at + 1]) / MEAN_UNIT,
      y: side * (1 - p[at + 2] / MEAN_UNIT),
      rx: Math.sqrt(Math.max(half + root, 0.04)),
      ry: Math.sqrt(Math.max(half - root, 0.04)),
      angle: cross === 0 ? (a >= b ? 0 : 90) : angle,
    };
  }

  // ---- a node's portrait: density below, ellipses above ---------------------------------------
  const make = (name, attributes = {}, parent = null) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  };

  function densityImage(node) {
    const grid = views[state.view].grid, cells = packed("density");
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = grid;
    const pen = canvas.getContext("2d"), image = pen.createImageData(grid, grid);
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--density").split(",").map(Number);
    for (let row = 0; row < grid; row++) {
      for (let column = 0; column < grid; column++) {
        const value = cells[(node * grid + (grid - 1 - row)) * grid + column];
        image.data.set([ink[0], ink[1], ink[2], Math.round(value * 0.42)], 4 * (row * grid + column));
      }
    }
    pen.putImageData(image, 0, 0);
    return canvas.toDataURL();
  }

  const firstRow = [0];
  for (const count of nodes.rows) firstRow.push(firstRow[firstRow.length - 1] + count);

  function rowDots(node, side, parent) {
    const p = packed("rows");
    let d = "";
    for (let r = firstRow[node]; r < firstRow[node + 1]; r++) {
      d += `M${(side * p[2 * r]) / MEAN_UNIT - 1} ${side * (1 - p[2 * r + 1] / MEAN_UNIT)}h2`;
    }
    make("path", { d, class: "dots", stroke: "currentColor", "stroke-width": 2, "stroke-opacity": 0.5 }, parent);
  }

  function portrait(svg, node) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${SIDE} ${SIDE}`);
    const clip = `clip-${svg.id || "n" + node}`;
    const rectangle = { width: SIDE, height: SIDE, rx: 6 };
    make("rect", rectangle, make("clipPath", { id: clip }, svg));
    make("rect", { ...rectangle, class: "paper" }, svg);
    const inside = make("g", { "clip-path": `url(#${clip})` }, svg);
    make("image", { href: densityImage(node), width: SIDE, height: SIDE, preserveAspectRatio: "none" }, inside);
    if (views[state.view].rows) rowDots(node, SIDE, inside);
    svg.ellipses = [];
    for (let c = 0; c < k; c++) svg.ellipses.push(make("ellipse", { class: `component c${c % COLOURS}` }, inside));
    svg.node = node;
    move(svg);
  }

  // Only the ellipses depend on the round.
  function move(svg) {
    svg.ellipses.forEach((element, c) => {
      const e = ellipse(svg.node, state.stop, c, SIDE);
      element.setAttribute("rx", e.rx.toFixed(2));
      element.setAttribute("ry", e.ry.toFixed(2));
      element.setAttribute("transform", `translate(${e.x.toFixed(2)} ${e.y.toFixed(2)}) rotate(${e.angle.toFixed(2)})`);
      element.style.fillOpacity = (0.06 + 0.3 * e.weight).toFixed(3);
      element.style.display = e.weight > 0 ? "" : "none";
    });
  }

  // ---- words and numbers ----------------------------------------------------------------------
  const number = (value, digits = 3) =>
    value === null ? "–" : Math.abs(value) >= 1e4 ? value.toExponential(2) : value.toFixed(digits).replace("-", "−");
  const signed = (value) => {
    if (value === null) return "–";
    const size = Math.abs(value), digits = size >= 100 ? 0 : size >= 0.095 ? 2 : 3;
    return (value < 0 ? "−" : "+") + size.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };
  const brief = (name, most = 24) => {
    const tail = (most - 1) >> 1;
    return name.length <= most ? name : `${name.slice(0, most - 1 - tail)}…${name.slice(-tail)}`;
  };
  const size = (count) => {
    for (const unit of ["bytes", "kB", "MB"]) {
      if (count < 1000) return unit === "bytes" ? `${count} bytes` : `${count.toFixed(1)} ${unit}`;
      count /= 1000;
    }
    return `${count.toFixed(1)} GB`;
  };

  const neighbours = Array.from({ length: n }, () => []);
  edges.source.forEach((a, e) => {
    neighbours[a].push([edges.target[e], edges.discrepancy[e], e]);
    neighbours[edges.target[e]].push([a, edges.discrepancy[e], e]);
  });
  for (const list of neighbours) list.sort((p, q) => p[1] - q[1]);

  // What is known of an edge: how far apart its ends are, or whether they trust each other and why.
  function edgeWords(e, discrepancy) {
    if (!edges.trusted) return ` differs by ${discrepancy === null ? "–" : discrepancy.toPrecision(2)}`;
    const told = Object.entries(edges.evidence).map(([name, of]) => `${name} ${of[e].map((v) => number(v, 2)).join(" and ")}`);
    return ` ${edges.trusted[e] ? "trusted" : "not trusted"}${told.length ? ` (${told.join("; ")})` : ""}`;
  }

  function words(i) {
    const parts = [`${nodes.rows[i].toLocaleString("en")} rows, ${nodes.degree[i]} neighbours, group ${nodes.group[i] + 1}.`];
    if (nodes.gain[i] !== null) {
      const verdict = nodes.verdict[i] === 0 ? "may be chance" : nodes.verdict[i] > 0 ? "gained" : "lost";
      const base = content.scores.baseline ?? "local", beside = base === "local" ? "with own data only" : "with all rows pooled";
      parts.push(`Held-out log-likelihood ${number(nodes[base][i])} ${beside}, ${number(nodes.network[i])} with neighbours: ${signed(nodes.gain[i])} (${verdict}).`);
    }
    if (content.levels) {
      const weights = content.levels.weights[i].map((w, l) => `${content.levels.names[l]} ${Math.round(100 * w)}%`);
      parts.push(`Its density: ${weights.join(", ")}.`);
    }
    if (nodes.rows[i] < 10) parts.push("Too few rows to show a density.");
    return parts.join(" ");
  }

  // ---- the detail panel -----------------------------------------------------------------------
  const figures = [byId("portrait")];

  // The clusters of the node, with intervals; pages of earlier versions know components alone.
  const atlas = content.atlas;
  const percent = (share) => (share > 0 && share < 0.01 ? "under 1%" : `${Math.round(100 * share)}%`);
  function weights() {
    const box = byId("bars");
    box.replaceChildren();
    const add = (name, c, share, range) => {
      const bar = document.createElement("span"), text = document.createElement("span");
      bar.className = `track c${c % COLOURS}`;
      bar.style.width = `${100 * share}%`;
      text.textContent = percent(share);
      if (range) text.title = `95% interval: ${percent(range[0])} to ${percent(range[1])}`;
      box.append(name, bar, text);
    };
    if (atlas) {
      atlas.names.forEach((words, c) => {
        const share = atlas.shares[state.node][c], range = atlas.intervals[state.node][c];
        if (share <= 0.0005) return;
        const name = document.createElement("a");
        name.href = `#cluster-${c}`;
        name.textContent = brief(words, 20);
        name.title = atlas.words[c];
        add(name, c, share, range[0] === null ? null : range);
      });
      return;
    }
    for (let c = 0; c < k; c++) {
      const { weight } = ellipse(state.node, state.stop, c, SIDE), name = document.createElement("span");
      name.textContent = `component ${c}`;
      if (weight > 0) add(name, c, weight, null);
    }
  }

  function showNeighbours() {
    const box = byId("neighbours");
    box.replaceChildren();
    figures.length = 1;
    const all = neighbours[state.node];
    for (const [other, discrepancy, e] of all.slice(0, 12)) {
      const button = document.createElement("button"), caption = document.createElement("span");
      button.type = "button";
      const svg = make("svg", { id: `near-${other}`, role: "img", "aria-label": `Components of node ${nodes.label[other]}` }, button);
      caption.className = "under";
      const name = document.createElement("b");
      name.textContent = brief(nodes.label[other]);
      name.title = nodes.label[other];
      caption.append(name, edgeWords(e, discrepancy));
      button.append(caption);
      button.addEventListener("click", () => pick(other));
      box.append(button);
      portrait(svg, other);
      figures.push(svg);
    }
    byId("neighbours-title").textContent = all.length
      ? `Neighbours of ${nodes.label[state.node]}, most alike first${all.length > 12 ? ` (12 of ${all.length})` : ""}`
      : `${nodes.label[state.node]} has no neighbours`;
  }

  const network = document.querySelector("svg.network");
  const dots = [...network.querySelectorAll(".node")];
  const centre = (dot) => {
    const box = dot.querySelector("circle, rect").getBBox();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };

  function pick(i, focus = false) {
    dots[state.node].classList.remove("picked");
    dots[state.node].tabIndex = -1;
    state.node = i;
    dots[i].classList.add("picked");
    dots[i].tabIndex = 0;
    if (focus) dots[i].focus();
    const [x, y] = centre(dots[i]);
    const spokes = neighbours[i].map(([j]) => `M${x} ${y}L${centre(dots[j]).join(" ")}`);
    network.querySelector(".chosen").setAttribute("d", spokes.join(""));
    byId("pick").value = String(i);
    draw();
  }

  function draw() {
    const i = state.node, view = views[state.view];
    byId("detail-name").textContent = `Node ${nodes.label[i]}`;
    byId("detail-words").textContent = words(i);
    byId("x-label").textContent = view.x;
    byId("y-label").textContent = view.y;
    byId("portrait").setAttribute("aria-label", `Density of the rows of node ${nodes.label[i]} and its components`);
    portrait(figures[0], i);
    showNeighbours();
    slide(state.stop);
  }

  // ---- the slider -----------------------------------------------------------------------------
  const slider = byId("round");
  slider.max = rounds.length - 1;

  function slide(stop) {
    state.stop = stop;
    slider.value = stop;
    slider.setAttribute("aria-valuetext", `round ${rounds[stop]}`);
    byId("round-number").textContent = rounds[stop];
    figures.forEach(move);
    weights();
    const share = rounds[stop] / Math.max(rounds[rounds.length - 1], 1);
    for (const rule of document.querySelectorAll(".rule")) {
      const from = Number(rule.dataset.from), x = from + share * (Number(rule.dataset.to) - from);
      rule.setAttribute("d", `M${x.toFixed(1)} 24V162`);
    }
  }

  function play() {
    if (state.timer) {
      clearInterval(state.timer);
      state.timer = null;
    } else {
      if (state.stop === rounds.length - 1) slide(0);
      state.timer = setInterval(() => {
        if (state.stop === rounds.length - 1) return play();
        slide(state.stop + 1);
      }, 260);
    }
    byId("play").textContent = state.timer ? "Pause" : "Play";
  }
  slider.addEventListener("input", () => slide(Number(slider.value)));
  byId("play").addEventListener("click", play);

  // ---- the network ----------------------------------------------------------------------------
  if (n > 150) network.classList.add("many");
  dots.forEach((dot, i) => dot.addEventListener("click", () => pick(i, true)));
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  network.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    pick((state.node + STEPS[event.key] + n) % n, true);
  });

  const groupCount = new Set(nodes.group).size, legend = byId("legend-gain"), gainLegend = legend.innerHTML;
  const gainClass = dots.map((dot) => [...dot.classList].find((name) => name.startsWith("gain-")));
  function colour(by) {
    const c = byId("pick-cluster") ? Number(byId("pick-cluster").value) : 0, tone = `c${c % COLOURS}`;
    dots.forEach((dot, i) => {
      dot.classList.toggle(gainClass[i], by === "gain");
      dot.classList.toggle(dot.dataset.group, by === "group");
      for (let other = 0; other < COLOURS; other++) dot.classList.remove(`c${other}`);
      if (by === "cluster") dot.classList.add(tone);
      dot.style.fillOpacity = by === "cluster" ? (0.08 + 0.92 * atlas.shares[i][c]).toFixed(2) : "";
    });
    if (by === "gain") {
      legend.innerHTML = gainLegend;
      return;
    }
    legend.replaceChildren();
    const item = (css, words) => {
      const box = document.createElement("span"), dot = document.createElement("i");
      dot.className = `dot ${css}`;
      box.append(dot, words);
      legend.append(box);
    };
    if (by === "cluster") {
      item(tone, `${brief(atlas.names[c])}: fuller where more of a node's rows are in it`);
      return;
    }
    for (let g = 0; g < Math.min(groupCount, GROUPS); g++) {
      item(`group-${g}`, `group ${g + 1}${groupCount > GROUPS ? ` (and every ${GROUPS}th after)` : ""}`);
    }
  }
  for (const input of document.querySelectorAll("input[name=colour]")) {
    input.addEventListener("change", () => colour(input.value));
  }

  function fill(select, names, chosen) {
    names.forEach((name, i) => select.add(new Option(brief(name, 26), i)));
    select.addEventListener("change", () => chosen(Number(select.value)));
  }
  fill(byId("pick"), nodes.label, (i) => pick(i));
  if (byId("plane")) {
    fill(byId("plane"), views.map((view) => view.name), (v) => {
      state.view = v;
      draw();
    });
  }

  // ---- clusters, and the way to their nodes and back -------------------------------------------
  // Every name of a cluster is a link to #cluster-c, every name of a node one to #node-i.
  function onlyCluster(c) {
    for (const element of document.querySelectorAll("[data-cluster]")) {
      element.classList.toggle("picked", Number(element.dataset.cluster) === c);
    }
    byId("clusters").classList.toggle("alone", c !== null);
  }
  function goTo(hash) {
    const found = /^#(cluster|node)-(\d+)$/.exec(hash);
    if (!found) return;
    const i = Number(found[2]);
    if (found[1] === "node" && i < n) {
      pick(i);
      byId("detail").scrollIntoView({ block: "center" });
    } else if (found[1] === "cluster" && atlas && i < atlas.names.length) {
      onlyCluster(i);
      byId("pick-cluster").value = String(i);
      document.querySelector("input[value=cluster]").checked = true;
      colour("cluster");
    }
  }
  if (atlas) {
    fill(byId("pick-cluster"), atlas.names, () => {
      document.querySelector("input[value=cluster]").checked = true;
      colour("cluster");
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      const hash = link && (link.getAttribute("href") || "");
      if (link && hash === location.hash && hash.startsWith("#cluster-")) { // once more: all again
        event.preventDefault();
        history.replaceState(null, "", location.pathname + location.search);
        onlyCluster(null);
      } else if (link && link.ownerSVGElement && hash.startsWith("#cluster-")) { // stay at the picture
        event.preventDefault();
        history.replaceState(null, "", hash);
        goTo(hash);
      } else if (link && hash === location.hash) {
        goTo(hash);
      }
    });
    addEventListener("hashchange", () => goTo(location.hash));
  }

  // ---- the table ------------------------------------------------------------------------------
  const table = byId("node-table"), rowsShown = { count: table.tBodies[0].rows.length };
  let order = Array.from({ length: n }, (_, i) => i);
  const NUMBERS = ["local", "network", "pooled"];

  function line(i) {
    const row = document.createElement("tr");
    const cell = (text, css) => {
      const element = row.insertCell();
      element.textContent = text;
      element.className = css;
    };
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = brief(nodes.label[i]);
    head.title = nodes.label[i];
    row.append(head);
    cell(nodes.rows[i].toLocaleString("en"), "n");
    cell(nodes.held[i].toLocaleString("en"), "n");
    const known = NUMBERS.map((key) => nodes[key][i]).filter((value) => value !== null), best = Math.max(...known);
    for (const key of NUMBERS) cell(number(nodes[key][i]), `n${nodes[key][i] === best ? " best" : ""}`);
    cell(signed(nodes.gain[i]), `n value ${gainClass[i]}`);
    cell(nodes.group[i] + 1, "n");
    cell(size(nodes.sent[i]), "n");
    return row;
  }
  function sort(key, down) {
    const values = nodes[key], missing = (i) => values[i] === null;
    const compare = key === "label" ? (a, b) => values[a].localeCompare(values[b], "en", { numeric: true }) : (a, b) => values[a] - values[b];
    order.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : (down ? -1 : 1) * compare(a, b)));
    table.tBodies[0].replaceChildren(...order.slice(0, rowsShown.count).map(line));
  }
  let sorted = ["gain", true];
  for (const button of table.querySelectorAll("thead button")) {
    button.addEventListener("click", () => {
      const key = button.dataset.key, cell = button.parentElement;
      sorted = [key, cell.getAttribute("aria-sort") !== "descending"];
      for (const other of table.querySelectorAll("thead th")) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", sorted[1] ? "descending" : "ascending");
      sort(...sorted);
    });
  }
  byId("all-nodes")?.addEventListener("click", (event) => {
    rowsShown.count = n;
    event.target.remove();
    sort(...sorted);
  });

  // A node to begin with: the one that changed most.
  const change = nodes.gain.map((gain) => Math.abs(gain ?? 0));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  pick(change.indexOf(Math.max(...change)));
  goTo(location.hash);
  document.documentElement.dataset.ready = "yes";
})();
