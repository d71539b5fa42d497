"use strict";
// The interactive benchmark: everything is drawn from the numbers in the page.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const GOALS = {sp: "statistical parity", eo: "equality of opportunity", eqo: "equalized odds"};
  const ALL = "all";
  const cells = rows(DATA.cells), settings = rows(DATA.settings);
  const state = {track: DATA.tracks[0], encode: DATA.encodings[0], dataset: ALL, partition: ALL, goal: ALL, plain: true, averaged: true, baselines: false, sort: "rank", up: true, method: DATA.leads[DATA.tracks[0]]};
  const COLUMNS = [
    ["rank", "Rank", 1, "by fairness, of those that keep accuracy and skill"],
    ["fairness", "Fairness", 3, "ratio of the groups' rates, 1 is fair"],
    ["accuracy", "Accuracy", 3, "share of right decisions"],
    ["mcc", "MCC", 2, "0 is no better than one answer for everybody"],
    ["keeps", "Keeps", 0, "cells in which accuracy and skill are kept"],
    ["collapsed", "Collapsed", 2, "share of seeds with an MCC below 0.05"],
    ["worst", "Worst client", 2, "fairness at the client where it is least"],
    ["consistency", "Alike", 2, "how alike the most similar people are treated"],
    ["flip", "Flips", 2, "decisions that change with the group alone"],
  ];

  function rows(columns) {
    for (const [name, of] of Object.entries(columns)) if (of.texts) columns[name] = of.places.map((place) => of.texts[place]);
    const names = Object.keys(columns), length = columns[names[0]].length, found = [];
    for (let i = 0; i < length; i++) {
      const row = {};
      for (const name of names) row[name] = columns[name][i];
      found.push(row);
    }
    return found;
  }
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "on") for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
      else if (key === "text") node.textContent = value;
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "");
  const mean = (values) => { const known = values.filter(Number.isFinite); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : NaN; };
  const isOwn = (method) => DATA.own.includes(method);
  const label = (method) => (isOwn(method) ? method + " (yours)" : method);
  const splitName = (name) => (name === "random" ? "random split" : "σ = " + name.split(":")[1]);

  // --- controls

  function choice(key, label, values, told = (v) => v) {
    if (values.length < 2) return null;
    const all = key === "encode" || key === "track" ? [] : [el("option", {value: ALL, text: "all"})];
    const select = el("select", {id: "c-" + key, on: {change: (event) => { state[key] = event.target.value; if (key === "track") state.method = DATA.leads[state.track]; draw(); }}}, ...all, ...values.map((v) => el("option", {value: v, text: told(v)})));
    select.value = state[key];
    return el("div", {class: "field"}, el("label", {for: "c-" + key, text: label}), select);
  }
  function check(key, label) {
    const box = el("input", {type: "checkbox", on: {change: (event) => { state[key] = event.target.checked; draw(); }}});
    box.checked = state[key];
    return el("label", {}, box, label);
  }
  const named = {ordinal: "the paper's ordinal codes", onehot: "one-hot, standardised"};
  document.getElementById("controls").append(...[
    choice("track", "Track", DATA.tracks),
    choice("encode", "Inputs", DATA.encodings, (v) => named[v] ?? v),
    choice("dataset", "Dataset", DATA.datasets),
    choice("partition", "Split", DATA.partitions, splitName),
    choice("goal", "Metric", Object.keys(GOALS), (v) => GOALS[v]),
    el("fieldset", {}, el("legend", {text: "Show"}), el("div", {class: "checks"}, check("plain", "as published"), check("averaged", "with average or a rule"), check("baselines", "baselines"))),
  ].filter(Boolean));
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());

  // --- what is shown

  function selected() {
    const here = cells.filter((c) => c.track === state.track && c.encode === state.encode && (state.dataset === ALL || c.dataset === state.dataset) && (state.partition === ALL || c.partition === state.partition) && (state.goal === ALL || c.goal === state.goal));
    const by = new Map();
    for (const cell of here) (by.get(cell.method) ?? by.set(cell.method, []).get(cell.method)).push(cell);
    const found = [];
    for (const [method, mine] of by) {
      const baseline = DATA.baselines.includes(method), later = /\+(average|thresholds|common_threshold|tilt)/.test(method);
      if (baseline ? !state.baselines : later ? !state.averaged : !state.plain) continue;
      const row = {method, baseline, cells: mine.length, one: mine.length === 1 ? mine[0] : null};
      for (const [key] of COLUMNS) row[key] = key === "keeps" ? mine.filter((c) => c.keeps).length : mean(mine.map((c) => c[key]));
      found.push(row);
    }
    return found;
  }
  function sorted(found) {
    const sign = state.up ? 1 : -1, key = state.sort;
    const value = (row) => (key === "method" ? row.method : Number.isFinite(row[key]) ? row[key] : state.up ? Infinity : -Infinity);
    return [...found].sort((a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : b.fairness - a.fairness));
  }
  function header(key, label, hint) {
    const on = {click: () => { state.up = state.sort === key ? !state.up : key === "rank" || key === "method" || key === "collapsed" || key === "flip"; state.sort = key; draw(); document.querySelector(`[data-sort=${key}]`).focus(); }};
    const sort = state.sort === key ? (state.up ? "ascending" : "descending") : null;
    return el("th", {scope: "col", class: key === "method" ? null : "num", "aria-sort": sort}, el("button", {type: "button", title: hint, "data-sort": key, on, text: label}));
  }
  function table(found) {
    const single = found.some((row) => row.one);
    const more = single ? [el("th", {scope: "col", class: "num", text: "Fairness, 95 %"}), el("th", {scope: "col", class: "num", text: "Lead ahead by"}), el("th", {scope: "col", class: "num", text: "p (Holm)"})] : [];
    const head = el("tr", {}, header("method", "Method", "name"), ...COLUMNS.map(([key, label, , hint]) => header(key, label, hint)), ...more);
    const body = found.map((row) => {
      const pick = el("button", {type: "button", text: label(row.method), "aria-pressed": String(row.method === state.method), on: {click: () => { state.method = row.method; draw(); document.getElementById("front-title").scrollIntoView({block: "nearest"}); }}});
      const extra = row.one ? [
        el("td", {class: "num", text: `${fixed(row.one.fairness_low, 3)} to ${fixed(row.one.fairness_high, 3)}`}),
        el("td", {class: "num", text: row.method === DATA.leads[state.track] ? "the lead" : fixed(row.one.ahead, 3)}),
        el("td", {class: "num", text: Number.isFinite(row.one.p) ? (row.one.p < 0.001 ? "< 0.001" : fixed(row.one.p, 3)) : ""}),
      ] : [];
      const values = COLUMNS.map(([key, , digits]) => el("td", {class: "num", text: key === "keeps" ? `${row.keeps} of ${row.cells}` : fixed(row[key], digits)}));
      const css = [row.keeps === 0 ? "lost" : "", row.method === DATA.leads[state.track] ? "taken" : "", isOwn(row.method) ? "own" : ""].join(" ").trim();
      return el("tr", {class: css || null}, el("th", {scope: "row"}, pick), ...values, ...extra);
    });
    document.getElementById("table").replaceChildren(el("caption", {text: "Sort by any column. A name shows all settings of that method below."}), el("thead", {}, head), el("tbody", {}, ...body));
  }
  // one picture with one name for those who do not see it; its numbers are in the table
  function pictured(plot, label) {
    for (const node of plot.querySelectorAll("g[aria-label], g[aria-description]")) { node.removeAttribute("aria-label"); node.removeAttribute("aria-description"); }
    const svg = plot.tagName === "svg" ? plot : [...plot.children].find((child) => child.tagName === "svg" && child.hasAttribute("viewBox") && child.querySelector("circle")) ?? plot.querySelector("svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    return plot;
  }
  function chart(found) {
    const shown = found.filter((row) => Number.isFinite(row.fairness));
    const kinds = ["as published", "average", "rule after training", "baseline"], colours = ["#D55E00", "#0072B2", "#009E73", "#7F7F7F"];
    if (DATA.own.length) { kinds.push("yours"); colours.push("#B0006D"); }
    const kind = (row) => (isOwn(row.method) ? "yours" : row.baseline ? "baseline" : /\+(thresholds|common_threshold|tilt)/.test(row.method) ? "rule after training" : row.method.endsWith("+average") ? "average" : "as published");
    const width = Math.min(900, document.getElementById("chart").clientWidth || 900);
    const labelled = shown.filter((row) => [DATA.leads[state.track], DATA.reference, "fedavg", "fair_fate", "fairfed", ...DATA.own, state.method].includes(row.method));
    const plot = Plot.plot({
      width, height: Math.min(460, Math.max(300, width * 0.6)), grid: true, marginLeft: 46, marginRight: 30,
      x: {label: "accuracy →", nice: true}, y: {label: "↑ fairness", nice: true},
      color: {legend: true, domain: kinds, range: colours},
      marks: [
        Plot.dot(shown, {x: "accuracy", y: "fairness", r: 5, fill: kind, fillOpacity: (row) => (row.keeps ? 0.9 : 0.35), title: (row) => `${row.method}\naccuracy ${fixed(row.accuracy, 3)}, fairness ${fixed(row.fairness, 3)}, MCC ${fixed(row.mcc, 2)}`, tip: true}),
        ...[false, true].map((own) => Plot.text(labelled.filter((row) => isOwn(row.method) === own), {x: "accuracy", y: "fairness", text: (row) => label(row.method).replace(":from=clients", ""), fontWeight: own ? 700 : 400, dy: -10, textAnchor: "middle"})),
      ],
    });
    document.getElementById("chart").replaceChildren(pictured(plot, "Accuracy against fairness of every method that is in the table"));
    document.getElementById("hint").textContent = "Faint dots do not keep accuracy or skill in any cell that is shown. Point at a dot for its numbers; all of them are in the table.";
  }
  function front() {
    const goal = state.goal === ALL ? "eqo" : state.goal;
    const here = settings.filter((s) => s.track === state.track && s.encode === state.encode && s.method === state.method && (s.metric === "" || s.metric === goal) && (state.dataset === ALL || s.dataset === state.dataset) && (state.partition === ALL || s.partition === state.partition));
    const by = new Map();
    for (const s of here) (by.get(s.setting) ?? by.set(s.setting, []).get(s.setting)).push(s);
    const points = [...by].map(([setting, mine]) => ({setting, accuracy: mean(mine.map((s) => s.test_accuracy)), fairness: mean(mine.map((s) => s["test_" + goal]))})).filter((p) => Number.isFinite(p.fairness));
    const best = points.filter((p) => !points.some((q) => q.accuracy >= p.accuracy && q.fairness >= p.fairness && (q.accuracy > p.accuracy || q.fairness > p.fairness))).sort((a, b) => a.accuracy - b.accuracy);
    document.getElementById("front-title").textContent = `All settings of ${state.method}, ${GOALS[goal]}`;
    const box = document.getElementById("front");
    if (!points.length) { box.replaceChildren(el("p", {class: "nothing", text: "Nothing to show: a baseline has no settings."})); return; }
    const width = Math.min(900, box.clientWidth || 900);
    box.replaceChildren(pictured(Plot.plot({
      width, height: 320, grid: true, marginLeft: 46,
      x: {label: "accuracy →", nice: true}, y: {label: "↑ fairness", nice: true},
      marks: [Plot.line(best, {x: "accuracy", y: "fairness", stroke: "var(--accent)"}), Plot.dot(points, {x: "accuracy", y: "fairness", r: 4, fill: "var(--accent)", title: (p) => `${p.setting}\naccuracy ${fixed(p.accuracy, 3)}, fairness ${fixed(p.fairness, 3)}`, tip: true})],
    }), `Accuracy against fairness of every setting of ${state.method}`));
  }
  function draw() {
    const found = sorted(selected());
    table(found);
    chart(found);
    front();
    const kept = found.filter((row) => !row.baseline && row.keeps > 0).sort((a, b) => a.rank - b.rank);
    document.getElementById("said").textContent = kept.length ? `${found.length} methods; the best of those shown is ${label(kept[0].method)}: fairness ${fixed(kept[0].fairness, 3)}, accuracy ${fixed(kept[0].accuracy, 3)}.` : "No method is shown.";
  }
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
  draw();
  document.documentElement.dataset.drawn = "";
})();
