"use strict";
// The charts of the report. Everything is drawn from the numbers in the page; nothing is loaded.
(() => {
  const PARTS = new Map();
  const NAMES = {sp: "statistical parity", eo: "equality of opportunity", eqo: "equalized odds"};
  const RATES = {selection_rate: "Selection rate", tpr: "True positive rate", fpr: "False positive rate"};
  const OUTCOMES = ["not asked", "counted", "counted as fair", "dropped", "took no part"];
  const OUTCOME_COLOURS = ["transparent", "var(--used)", "var(--fair)", "var(--dropped)", "var(--refused)"];
  const GROUP_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#6A4C93", "#7F7F7F", "#B8860B", "#20808D", "#A0522D"];

  // --- small things

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
  const fixed = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : "undefined");
  const percent = (value) => (Number.isFinite(value) ? (100 * value).toFixed(1) + "\u00a0%" : "undefined");
  const short = (text, most) => ([...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text);
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "12px " + getComputedStyle(document.body).fontFamily;
  const long = (text) => Math.ceil(ruler.measureText(text).width);
  function cut(text, most) {
    let letters = Math.min(120, [...text].length), found = short(text, letters);
    while (letters && long(found) > most) found = short(text, letters--);
    return found;
  }
  // names beside an axis: cut to so many pixels, and the margin that they need
  function beside(names, most) {
    const labels = new Map(names.map((name) => [name, cut(name, most)]));
    return {label: (name) => labels.get(name), margin: 18 + Math.max(...[...labels.values()].map(long))};
  }
  function bytes(text) {
    const raw = atob(text), found = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
    return found.buffer;
  }
  const whole = (of) => (of.wide ? new Uint32Array(bytes(of.data)) : new Uint16Array(bytes(of.data)));
  function numbers(of) {
    const steps = new Uint16Array(bytes(of.data)), found = new Float64Array(steps.length);
    for (let i = 0; i < steps.length; i++) found[i] = steps[i] === 65535 ? NaN : of.low + steps[i] * of.step;
    return found;
  }
  // --- one comparison

  const LINES = ["drawn", "seed", "metric", "attribute"], MODEL = ["strategy", "modelSeed"];
  const USES = {
    rounds: LINES, tradeoff: LINES, rates: ["attribute", ...MODEL], calibration: ["attribute", ...MODEL],
    thresholds: ["metric", "attribute", ...MODEL], rows: ["attribute", ...MODEL], local: ["metric", "attribute", ...MODEL], taking: MODEL,
  };

  class Part {
    constructor(root, data, kept) {
      this.root = root;
      this.data = data;
      this.series = new Map(data.series.map((one) => [one.key + "@" + one.attribute,
        {...one, values: numbers(one.values), std: numbers(one.std), final: numbers(one.final), front: one.trade && new Uint8Array(bytes(one.trade.front))}]));
      this.several = data.attributes.length > 0;
      this.state = {
        drawn: new Set(data.strategies.flatMap((s, n) => (s.drawn ? [n] : []))),
        seed: "all", metric: data.metric, attribute: 0, strategy: data.shown[0], modelSeed: data.shown[1],
        from: 0, to: data.rounds.length - 1, cuts: null, together: null, open: [],
      };
      if (kept) this.restore(kept);
      this.views = [];
      this.build();
    }
    keep() {
      const open = [...this.root.querySelectorAll("details[open]")].map((details) => details.closest("[data-chart]").dataset.chart);
      return {...this.state, drawn: [...this.state.drawn], last: this.state.to === this.data.rounds.length - 1, cuts: null, open};
    }
    restore(kept) {
      const names = this.data.strategies.length, seeds = this.data.seeds.length;
      const drawn = kept.drawn.filter((n) => n < names);
      Object.assign(this.state, kept, {
        drawn: new Set(drawn), to: kept.last ? this.data.rounds.length - 1 : Math.min(kept.to, this.data.rounds.length - 1),
        from: Math.min(kept.from, this.data.rounds.length - 1),
      });
      if (this.state.strategy >= names) this.state.strategy = 0;
      if (this.state.modelSeed >= seeds) this.state.modelSeed = 0;
      if (this.state.seed !== "all" && this.state.seed >= seeds) this.state.seed = "all";
    }
    get attribute() { return this.data.attributes[this.state.attribute]; }
    get attributeName() { return this.several ? this.attribute.name : ""; }
    get model() {
      if (!this.data.models) return -1;
      return this.data.models.findIndex(([line, seed]) => line === this.state.strategy && seed === this.state.modelSeed);
    }
    find(key, attribute = "") { return this.series.get(key + "@" + attribute); }
    fair(metric = this.state.metric) { return this.find(metric, this.attributeName) || this.find(metric); }
    chosenSeeds() { return this.state.seed === "all" ? this.data.seeds.map((_, n) => n) : [this.state.seed]; }
    get oneSeed() { return this.state.seed !== "all" || this.data.seeds.length === 1; }
    seedsName() { return this.oneSeed ? "Seed " + this.data.seeds[this.chosenSeeds()[0]] : "Means over " + this.data.seeds.length + " seeds"; }
    // what is undefined in some of the chosen seeds, though they were measured, is said and left out of means
    leftOut(all) {
      const accuracy = this.find("accuracy"), found = [];
      for (const series of all) {
        const seeds = this.chosenSeeds().filter((seed) => this.data.strategies.some((_, line) =>
          Number.isFinite(this.final(accuracy, line, seed)) && !Number.isFinite(this.final(series, line, seed))));
        if (seeds.length) found.push(this.seriesName(series) + " in " + (seeds.length === 1 ? "seed " : "seeds ") + seeds.map((seed) => this.data.seeds[seed]).join(", "));
      }
      return found.length ? " Undefined, since groups have too few people: " + found.join("; ") + "." : "";
    }
    // the line that ratios should reach, where the chart goes so far
    limit([low, high]) {
      return this.data.line >= low && this.data.line <= high ? [Plot.ruleY([this.data.line], {stroke: "var(--soft)", strokeDasharray: "3 3"})] : [];
    }
    seriesName(series) {
      return series.kind !== "fair" ? series.name : (NAMES[series.key] || series.key) + (series.attribute ? " by " + series.attribute : "");
    }
    // which seed is chosen; after the last one come the means over all seeds
    get seedIndex() { return this.state.seed === "all" ? this.data.seeds.length : this.state.seed; }
    at(series, line, seed, round) {
      return series.values[(line * (this.data.seeds.length + 1) + seed) * this.data.rounds.length + round];
    }
    curve(series, line) {
      const found = [];
      for (let r = this.state.from; r <= this.state.to; r++) {
        const mean = this.at(series, line, this.seedIndex, r), std = this.oneSeed ? NaN : series.std[line * this.data.rounds.length + r];
        if (Number.isFinite(mean)) found.push({round: this.data.rounds[r], mean, std, strategy: this.data.strategies[line].name});
      }
      return found;
    }
    // in the last round of a strategy that was measured
    final(series, line, seed) { return series.final[line * (this.data.seeds.length + 1) + seed]; }

    build() {
      this.root.replaceChildren(this.controls());
      for (const view of [roundsView, tradeView, ratesView, calibrationView, thresholdView, rowsView, localView, takingView]) {
        const made = view(this);
        if (made) { this.views.push(made); this.root.append(made.node); }
      }
      this.update();
    }
    // all charts, or those that depend on what was changed
    update(key) { for (const view of this.views) if (!key || USES[view.node.dataset.chart].includes(key)) view.update(); }

    controls() {
      const {data, state} = this, box = el("div", {class: "controls", role: "group", "aria-label": "What the charts show"});
      const checks = el("div", {class: "checks"});
      data.strategies.forEach((strategy, n) => {
        const input = el("input", {type: "checkbox", checked: state.drawn.has(n), "data-strategy": n, on: {change: () => {
          if (input.checked) state.drawn.add(n); else state.drawn.delete(n);
          this.update("drawn");
        }}});
        checks.append(el("label", {}, input, swatch(strategy), el("bdi", {text: strategy.name + (strategy.flaw ? " (" + strategy.flaw + ")" : "")})));
      });
      box.append(el("fieldset", {class: "field"}, el("legend", {text: "Strategies in the first two charts"}), checks));
      if (data.seeds.length > 1) box.append(this.choice("Seeds", "seed", [["all", "all " + data.seeds.length], ...data.seeds.map((s, n) => [n, "seed " + s])]));
      const metrics = ["sp", "eo", "eqo"].map((key) => [key, key.toUpperCase() + ", " + NAMES[key]]);
      if (this.find(data.objective) && !(data.objective in NAMES)) metrics.push([data.objective, short(data.objective, 40)]);
      box.append(this.choice("Fairness metric", "metric", metrics));
      if (data.attributes.length > 1) box.append(this.choice("Groups by", "attribute", data.attributes.map((a, n) => [n, a.name]), () => { state.cuts = null; }));
      if (data.models) {
        box.append(this.choice("Model in the other charts", "strategy", data.strategies.map((s, n) => [n, s.name]).filter(([n]) => data.models.some((m) => m[0] === n)), () => {
          state.cuts = null;
          if (this.model < 0) { state.modelSeed = data.models.find((m) => m[0] === state.strategy)[1]; }
          this.root.querySelector("[data-control=modelSeed]").replaceWith(this.seedChoice());
        }));
        box.append(this.seedChoice());
      }
      return box;
    }
    seedChoice() {
      const seeds = this.data.models.filter((m) => m[0] === this.state.strategy).map((m) => [m[1], "seed " + this.data.seeds[m[1]]]);
      return this.choice("Its seed", "modelSeed", seeds, () => { this.state.cuts = null; });
    }
    choice(label, key, options, changed) {
      const select = el("select", {"data-key": key, on: {change: () => {
        const value = select.value;
        this.state[key] = key === "metric" || value === "all" ? value : Number(value);
        if (changed) changed();
        this.update(key);
      }}});
      for (const [value, text] of options) select.append(el("option", {value, text, selected: String(this.state[key]) === String(value)}));
      return el("div", {class: "field only-screen", "data-control": key}, el("label", {}, label, document.createElement("br"), select));
    }
  }

  function swatch(strategy) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "swatch");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("viewBox", "0 0 22 10");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [key, value] of Object.entries({x1: 0, x2: 22, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": strategy.dash})) line.setAttribute(key, value);
    line.style.stroke = strategy.colour;
    svg.append(line);
    return svg;
  }

  // --- a chart: a figure with its name, a hint, the drawing, and its numbers as a table

  function figure(part, id, title, hint, draw, table) {
    const body = el("div", {class: "body"}), tableBox = el("div", {class: "wide"});
    const details = el("details", {open: part.state.open.includes(id)}, el("summary", {text: "Numbers as a table", "aria-label": "Numbers as a table: " + title}), tableBox);
    const hintNode = el("p", {class: "hint"});
    const node = el("figure", {class: "chart", "data-chart": id}, el("figcaption", {text: title}), hintNode, body, details);
    const fill = () => {
      if (!details.open) return;
      const {columns, rows, caption} = table();
      const head = el("tr", {}, ...columns.map((c) => el("th", {scope: "col", text: c})));
      const lines = rows.map((row) => el("tr", {}, ...row.map((value, n) => (n ? el("td", {class: "num", text: value}) : el("th", {scope: "row"}, el("bdi", {text: value}))))));
      tableBox.replaceChildren(el("table", {}, el("caption", {text: caption}), el("thead", {}, head), el("tbody", {}, ...lines)));
      scrollable();
    };
    details.addEventListener("toggle", fill);
    return {node, update() {
      hintNode.textContent = typeof hint === "function" ? hint() : hint;
      draw(body, node);
      fill();
    }};
  }
  function width(node, most = 1140) {
    const there = node.clientWidth || node.parentElement?.clientWidth || 600;
    return Math.max(220, Math.min(most, there));
  }
  function drawing(label, options) {
    const svg = Plot.plot({style: {background: "transparent", color: "currentColor", fontSize: "12px", overflow: "visible"}, ...options});
    const root = svg.tagName.toLowerCase() === "svg" ? svg : svg.querySelector("svg");
    root.setAttribute("role", "img");
    root.setAttribute("aria-label", label);
    for (const node of root.querySelectorAll("[aria-label],[aria-description]")) {
      node.removeAttribute("aria-label");
      node.removeAttribute("aria-description");
    }
    return svg;
  }
  const tip = (data, options) => Plot.tip(data, Plot.pointer({fill: "var(--paper)", stroke: "var(--soft)", fontSize: 12, ...options}));
  const nothing = (text) => el("p", {class: "nothing", text});
  function keys(names, colours) {
    return el("ul", {class: "keys"}, ...names.map((name, n) => el("li", {}, (() => { const box = el("span", {class: "box"}); box.style.background = colours[n % colours.length]; return box; })(), el("bdi", {text: name}))));
  }

  // 1. metrics over the rounds

  function roundsView(part) {
    const {data, state} = part;
    let at = null;
    const read = el("p", {class: "read", role: "status"});
    const help = el("p", {class: "hint only-screen", text: "Focus the chart and press the arrow keys to read the values of a round."});
    const shownSeries = () => [
      ...["accuracy", "balanced_accuracy", "mcc", "selection_rate"].map((key) => part.find(key)),
      ...["sp", "eo", "eqo"].map((key) => part.fair(key)),
      state.metric in NAMES ? null : part.find(state.metric),
    ].filter(Boolean);
    const lines = () => [...state.drawn].sort((a, b) => a - b);
    const title = (series) => part.seriesName(series);
    const panels = el("div", {class: "panels", tabindex: 0, role: "group", "aria-label": "Metrics over the rounds; arrow keys read values", on: {keydown: keyed}});
    const made = figure(part, "rounds", "Metrics over the rounds",
      () => (!state.drawn.size ? "No strategy is chosen." : part.oneSeed ? part.seedsName() + "." : "Lines are means over seeds; shaded is one standard deviation to either side, for up to three strategies.")
        + " A strategy that was measured in one round only is a dot."
        + (data.every > 1 ? " One round in " + data.every + " is drawn." : "") + part.leftOut(shownSeries()),
      (body) => {
        if (!body.childNodes.length) body.append(...addZoom(), help, panels, read);
        panels.replaceChildren(...shownSeries().map((series) => el("div", {class: "panel"}, el("p", {class: "name", text: title(series)}))));
        const wide = width(panels.firstElementChild || panels, 560);
        shownSeries().forEach((series, n) => panels.children[n].append(draw(series, wide)));
        say();
      },
      () => {
        const every = Math.max(1, Math.floor((state.to - state.from + 1) / 20)), rows = [];
        for (let r = state.from; r <= state.to; r++) {
          if ((r - state.from) % every && r !== state.to) continue;
          for (const line of lines()) {
            const values = shownSeries().map((series) => part.at(series, line, part.seedIndex, r));
            if (values.some(Number.isFinite)) rows.push([String(data.rounds[r]), data.strategies[line].name, ...values.map((v) => fixed(v))]);
          }
        }
        return {columns: ["round", "strategy", ...shownSeries().map(title)], rows, caption: part.seedsName() + ", test rows." + part.leftOut(shownSeries())};
      });
    function addZoom() {
      if (data.rounds.length < 3) return [];
      const ends = {};
      for (const key of ["from", "to"]) {
        const output = el("output", {text: data.rounds[state[key]]});
        const input = el("input", {type: "range", min: 0, max: data.rounds.length - 1, value: state[key], "aria-valuetext": "round " + data.rounds[state[key]], "data-key": key, on: {input: () => {
          let value = Number(input.value);
          value = key === "from" ? Math.min(value, state.to - 1) : Math.max(value, state.from + 1);
          state[key] = value;
          input.value = value;
          output.textContent = data.rounds[value];
          input.setAttribute("aria-valuetext", "round " + data.rounds[value]);
          made.update();
        }}});
        ends[key] = el("div", {class: "field"}, el("label", {}, (key === "from" ? "Zoom from round " : "to round "), output, input));
      }
      return [el("div", {class: "controls only-screen"}, ends.from, ends.to)];
    }
    function keyed(event) {
      const move = {ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9}[event.key];
      if (!move) return;
      event.preventDefault();
      at = (at === null ? state.from - 1 : at) + move;
      say();
    }
    function say() {
      if (at === null) return;
      at = Math.min(state.to, Math.max(state.from, at));
      const parts = lines().map((line) => data.strategies[line].name + " " + shownSeries().map((series) => title(series) + " " + fixed(part.at(series, line, part.seedIndex, at))).join(", "));
      read.textContent = "Round " + data.rounds[at] + ": " + (parts.join("; ") || "no strategy is chosen");
    }
    function draw(series, wide) {
      const marks = [], all = [], clip = (value) => Math.max(series.key === "mcc" ? -1 : 0, Math.min(1, value));
      const chosen = lines().map((line) => ({line, curve: part.curve(series, line)}));
      if (chosen.length <= 3) {
        for (const {line, curve} of chosen) {
          const banded = curve.filter((d) => Number.isFinite(d.std));
          if (banded.length) marks.push(Plot.areaY(banded, {x: "round", y1: (d) => clip(d.mean - d.std), y2: (d) => clip(d.mean + d.std), fill: data.strategies[line].colour, fillOpacity: 0.16}));
        }
      }
      for (const {line, curve} of chosen) {
        const strategy = data.strategies[line];
        all.push(...curve);
        if (curve.length === 1) marks.push(Plot.dot(curve, {x: "round", y: "mean", fill: strategy.colour, r: 5}));
        else marks.push(Plot.lineY(curve, {x: "round", y: "mean", stroke: strategy.colour, strokeDasharray: strategy.dash || null, strokeWidth: 2}));
      }
      marks.push(Plot.tip(all, Plot.pointer({x: "round", y: "mean", fill: "var(--paper)", stroke: "var(--soft)", title: (d) => d.strategy + "\nround " + d.round + ": " + fixed(d.mean) + (Number.isFinite(d.std) ? " ± " + fixed(d.std) : "")})));
      const values = all.flatMap((d) => (chosen.length <= 3 && d.std ? [clip(d.mean - d.std), clip(d.mean + d.std)] : [d.mean]));
      let low = values.length ? Math.min(...values) : 0, high = values.length ? Math.max(...values) : 1;
      if (series.kind === "fair") high = Math.max(high, data.line);
      if (high - low < 0.05) { low -= 0.03; high += 0.03; }
      const top = series.key === "mcc" || series.kind === "skill" || series.kind === "fair" ? Math.min(1, high) : high;
      if (series.kind === "fair") marks.unshift(...part.limit([low, top]));
      return drawing(title(series) + " over the rounds, of " + lines().map((n) => data.strategies[n].name).join(", "), {
        width: wide, height: 190, marginLeft: 44, marginRight: 12, marginTop: 12, marginBottom: 36,
        x: {label: "round", domain: [data.rounds[state.from], data.rounds[state.to]], ticks: 5, tickFormat: "d", labelArrow: "none"}, y: {label: null, domain: [low, top], ticks: 5, grid: true}, marks,
      });
    }
    return made;
  }

  // 2. accuracy against fairness

  function tradeView(part) {
    const {data, state} = part;
    function points() {
      const fair = part.fair(), accuracy = part.find("accuracy");
      return data.strategies.map((strategy, line) => {
        const seeds = part.chosenSeeds().map((seed) => [part.final(accuracy, line, seed), part.final(fair, line, seed)]).filter((v) => v.every(Number.isFinite));
        const all = fair.trade.all[line].map((value) => value ?? NaN), [x, y, sx, sy] = part.oneSeed && seeds.length ? [...seeds[0], NaN, NaN] : all;
        return {line, strategy, seeds, x, y, sx, sy, best: !!fair.front[line * (data.seeds.length + 1) + part.seedIndex]};
      }).filter((p) => p.seeds.length && !p.strategy.flaw);
    }
    const front = (all) => all.filter((p) => p.best).sort((a, b) => a.x - b.x);
    return figure(part, "tradeoff", "Accuracy against fairness",
      () => "In the last round; up and to the right is better. The line joins the strategies that no other one beats in both; those that collapsed or were not trained are left out." + (part.oneSeed ? " " + part.seedsName() + "." : " Bars are one standard deviation over seeds, small dots are seeds.") + part.leftOut([part.fair()]),
      (body) => {
        const all = points(), best = front(all), wide = width(body, 820);
        if (!all.length) { body.replaceChildren(nothing("No model to draw: all have collapsed, or a number is undefined.")); return; }
        const faint = (p) => (state.drawn.has(p.line) ? 1 : 0.35);
        const labelled = all.filter((p) => best.includes(p) || state.drawn.has(p.line));
        const marks = [Plot.line(best, {x: "x", y: "y", stroke: "var(--soft)", strokeWidth: 1.5})];
        const ys = [], xs = [];
        for (const p of all) {
          const colour = p.strategy.colour, opacity = faint(p);
          if (state.drawn.has(p.line) && p.seeds.length > 1) marks.push(Plot.dot(p.seeds, {x: (d) => d[0], y: (d) => d[1], r: 2.5, fill: colour, fillOpacity: 0.5}));
          if (Number.isFinite(p.sx) && state.drawn.has(p.line)) {
            marks.push(Plot.link([p], {x1: p.x - p.sx, x2: p.x + p.sx, y1: p.y, y2: p.y, stroke: colour, strokeOpacity: opacity}));
            marks.push(Plot.link([p], {x1: p.x, x2: p.x, y1: p.y - p.sy, y2: p.y + p.sy, stroke: colour, strokeOpacity: opacity}));
            xs.push(p.x - p.sx, p.x + p.sx); ys.push(p.y - p.sy, p.y + p.sy);
          }
          if (state.drawn.has(p.line)) for (const s of p.seeds) { xs.push(s[0]); ys.push(s[1]); }
          xs.push(p.x); ys.push(p.y);
          marks.push(Plot.dot([p], {x: "x", y: "y", r: 6, fill: colour, stroke: colour, strokeWidth: 2, fillOpacity: opacity, strokeOpacity: opacity}));
        }
        const middle = (Math.min(...xs) + Math.max(...xs)) / 2, name = (d) => short(d.strategy.name, 30);
        for (const [textAnchor, mine] of [["end", labelled.filter((d) => d.x > middle)], ["start", labelled.filter((d) => d.x <= middle)]]) {
          marks.push(Plot.text(mine, {x: "x", y: "y", text: name, dy: -13, dx: textAnchor === "end" ? 8 : -8, textAnchor, stroke: "var(--paper)", strokeWidth: 4, fill: "currentColor", fontSize: 12}));
        }
        marks.push(tip(all, {x: "x", y: "y", title: (d) => d.strategy.name + "\naccuracy " + fixed(d.x) + "\n" + state.metric.toUpperCase() + " " + fixed(d.y)}));
        const pad = (values, least) => { let a = Math.min(...values), b = Math.max(...values); const more = Math.max(least - (b - a), 0.12 * (b - a)) / 2; return [a - more, b + more]; };
        marks.unshift(...part.limit(pad(ys, 0.06)));
        body.replaceChildren(drawing("Accuracy against " + part.seriesName(part.fair()) + " of " + all.length + " strategies", {
          width: wide, height: Math.min(460, 0.62 * wide + 80), marginLeft: 50, marginBottom: 40, marginTop: 24, marginRight: 20,
          x: {label: "accuracy", domain: pad(xs, 0.04), grid: true, ticks: 6, labelArrow: "none"}, y: {label: cut(part.seriesName(part.fair()), wide - 60), domain: pad(ys, 0.06), grid: true, labelArrow: "none"}, marks,
        }));
      },
      () => {
        const all = points(), best = front(all);
        return {columns: ["strategy", "accuracy", "± over seeds", state.metric.toUpperCase(), "± over seeds", "on the front"], caption: part.seedsName() + ", test rows of the last round, " + part.seriesName(part.fair()) + "." + part.leftOut([part.fair()]),
          rows: all.map((p) => [p.strategy.name, fixed(p.x), fixed(p.sx), fixed(p.y), fixed(p.sy), best.includes(p) ? "yes" : "no"])};
      });
  }

  // the model that the other charts are about

  function modelName(part) {
    return part.data.strategies[part.state.strategy].name + ", seed " + part.data.seeds[part.state.modelSeed];
  }

  // a count of people, where small ones are not shown
  const counted = (part, people) => (people < 0 ? "fewer than " + part.data.minCell : people.toLocaleString("en"));

  // 3. rates by group

  function ratesView(part) {
    if (!part.data.rates) return null;
    const cache = new Map();
    function rates(kind) {
      const a = part.state.attribute, key = a + kind, of = part.data.rates[a];
      if (!cache.has(key)) cache.set(key, {values: numbers(of[kind]), sure: new Uint8Array(bytes(of[kind + "-enough"])), people: of.people});
      const {values, sure, people} = cache.get(key), groups = part.attribute.groups.length, size = part.data.models.length * groups;
      return part.attribute.groups.map((group, g) => {
        const at = part.model * groups + g;
        return {group, value: values[at], low: values[size + at], high: values[2 * size + at], sure: !!sure[at], people: people[at]};
      });
    }
    return figure(part, "rates", "Rates by group", () => modelName(part) + ": test rows, with 95 % intervals over people. Hollow: too few people to interpret." + (part.data.minCell > 1 ? " Rates of fewer than " + part.data.minCell + " people are not shown." : ""),
      (body) => {
        const panels = el("div", {class: "panels"});
        body.replaceChildren(panels);
        const kinds = Object.keys(RATES);
        kinds.forEach((kind) => panels.append(el("div", {class: "panel"}, el("p", {class: "name", text: RATES[kind]}))));
        kinds.forEach((kind, n) => {
          const rows = rates(kind), wide = width(panels.children[n], 560), names = rows.map((r) => r.group);
          const {label, margin} = beside(names, Math.min(134, wide / 3));
          const usable = rows.filter((r) => Number.isFinite(r.value));
          panels.children[n].append(drawing(RATES[kind] + " by " + part.attributeName, {
            width: wide, height: 60 + 30 * rows.length, marginLeft: margin, marginRight: 20, marginTop: 8, marginBottom: 34,
            x: {domain: [0, 1], label: null, grid: true, ticks: 5, tickFormat: "%"}, y: {domain: names, label: null, tickFormat: label},
            marks: [
              Plot.link(usable, {x1: "low", x2: "high", y1: "group", y2: "group", stroke: "var(--accent)", strokeWidth: 2}),
              Plot.dot(usable, {x: "value", y: "group", r: 5, stroke: "var(--accent)", strokeWidth: 2, fill: (d) => (d.sure ? "var(--accent)" : "var(--paper)")}),
              tip(usable, {x: "value", y: "group", title: (d) => d.group + "\n" + percent(d.value) + " (" + percent(d.low) + " to " + percent(d.high) + ")\n" + counted(part, d.people) + " people" + (d.sure ? "" : "\ntoo few people to interpret")}),
            ],
          }));
        });
      },
      () => ({columns: ["group", "people", ...Object.values(RATES).flatMap((name) => [name, "95 % interval"])], caption: modelName(part) + ", by " + part.attributeName,
        rows: part.attribute.groups.map((group, g) => [group, counted(part, rates("selection_rate")[g].people), ...Object.keys(RATES).flatMap((kind) => {
          const r = rates(kind)[g];
          return [part.data.minCell > 1 && r.people && !Number.isFinite(r.value) ? "not shown" : percent(r.value), r.sure ? percent(r.low) + " to " + percent(r.high) : "too few people to interpret"];
        })])}));
  }

  const merging = (part) => "Neighbouring scores are merged so that each has at least " + part.data.minCell + " people of its group and outcome";

  // 4. calibration

  function calibrationView(part) {
    if (!part.data.scores) return null;
    const {data} = part;
    const points = () => data.scores.calibration[part.state.attribute][part.model].map(([g, people, score, rate, low, high]) => ({group: part.attribute.groups[g], g, people, score, rate, low, high}));
    const LEAST = 10;
    // each group's mean score beside the share that has the favourable outcome
    function verdict() {
      return part.attribute.groups.map((group, g) => {
        const means = data.scores.means[part.state.attribute][part.model][g];
        if (!means) return "";
        const [score, rate] = means;
        const off = Math.abs(rate - score) < 0.005 ? "right on average" : "on average " + fixed(Math.abs(rate - score), 2) + (rate > score ? " too low" : " too high");
        return " The scores of " + group + " are " + off + ": mean score " + fixed(score, 2) + ", " + percent(rate) + " have the favourable outcome.";
      }).join("");
    }
    return figure(part, "calibration", "Calibration by group", () => modelName(part) + ": of the people who get such a score, how many have the favourable outcome? On the diagonal, a score of 0.7 means 70 of 100. " + (data.minCell > 1 ? merging(part) + "." : "Steps with fewer than " + LEAST + " people are in the table only.") + verdict(),
      (body) => {
        const all = points(), rows = all.filter((p) => p.people >= LEAST), wide = width(body, 620);
        const marks = [Plot.line([[0, 0], [1, 1]], {stroke: "var(--soft)", strokeDasharray: "3 3"})];
        part.attribute.groups.forEach((group, g) => {
          const mine = rows.filter((p) => p.g === g), colour = GROUP_COLOURS[g % GROUP_COLOURS.length];
          marks.push(Plot.link(mine, {x1: "score", x2: "score", y1: "low", y2: "high", stroke: colour, strokeOpacity: 0.6}));
          marks.push(Plot.line(mine, {x: "score", y: "rate", stroke: colour, strokeWidth: 2}));
          marks.push(Plot.dot(mine, {x: "score", y: "rate", fill: colour, r: 4}));
        });
        marks.push(tip(rows, {x: "score", y: "rate", title: (d) => d.group + "\nscore " + fixed(d.score, 2) + ": " + percent(d.rate) + " of " + d.people + " people"}));
        body.replaceChildren(keys(part.attribute.groups, GROUP_COLOURS), drawing("Calibration by " + part.attributeName, {
          width: wide, height: Math.min(420, 0.75 * wide), marginLeft: 50, marginBottom: 40, marginTop: 26,
          x: {domain: [0, 1], label: "score (predicted probability)", grid: true, labelArrow: "none"}, y: {domain: [0, 1], label: "share with the favourable outcome", grid: true, labelArrow: "none"}, marks,
        }));
      },
      () => ({columns: ["group", "mean score", "people", "with the favourable outcome", "95 % interval"], caption: modelName(part) + ", by " + part.attributeName,
        rows: points().map((p) => [p.group, fixed(p.score), String(p.people), percent(p.rate), percent(p.low) + " to " + percent(p.high)])}));
  }

  // 5. moving the thresholds

  function thresholdView(part) {
    if (!part.data.scores) return null;
    const {data, state} = part, {steps} = data.scores, cache = new Map();
    const own = () => data.scores.cuts[part.model];
    const nowCuts = () => state.cuts || own();
    const together = () => (state.together === null ? new Set(own()).size === 1 : state.together);
    function lookUp(kind) {
      const key = kind + state.attribute;
      if (!cache.has(key)) cache.set(key, numbers(data.scores.thresholds[state.attribute][kind]));
      return cache.get(key);
    }
    // with one threshold for everybody
    function results(step) {
      const names = Object.keys(NUMBERS), at = (part.model * (steps + 1) + step) * names.length;
      return Object.fromEntries(names.map((key, n) => [key, lookUp("metrics")[at + n]]));
    }
    // selection, true and false positive rates of a group
    function groupRates(g, step) {
      const at = ((part.model * (steps + 1) + step) * part.attribute.groups.length + g) * 3;
      return Array.from(lookUp("rates").subarray(at, at + 3));
    }
    const NOTHING = {};
    // as the model decides: from its counts, which are exact
    const exact = () => Object.fromEntries(Object.keys(NUMBERS).map((key) => [key, part.final(part.find(key, key in NAMES ? part.attributeName : ""), state.strategy, state.modelSeed)]));
    const box = el("input", {type: "checkbox", "data-key": "together", on: {change: () => { state.together = box.checked; made.update(); }}});
    const reset = el("button", {type: "button", text: "As the model decides", on: {click: () => { state.cuts = null; made.update(); }}});
    const first = el("div", {}, el("label", {}, box, " one threshold for all groups"), reset);
    const sliders = el("div", {class: "sliders"}, first), out = el("div", {class: "wide"}), curves = el("div");
    let built = "";
    function buildSliders() {
      box.checked = together();
      const signature = [part.model, state.attribute, together()].join();
      if (built === signature) return;
      built = signature;
      const groups = part.attribute.groups, fields = [];
      const members = groups.map((_, a) => data.groups.map((_, g) => g).filter((g) => part.attribute.index[g] === a));
      const add = (text, which) => {
        const output = el("output"), input = el("input", {type: "range", min: 0, max: steps, step: 1, "data-group": text, on: {input: () => {
          const cuts = [...nowCuts()];
          for (const g of which) cuts[g] = Number(input.value) / steps;
          state.cuts = cuts;
          made.update();
        }}});
        fields.push({input, output, which});
        return el("label", {}, el("bdi", {text}), " ", output, input);
      };
      while (first.nextSibling) first.nextSibling.remove();
      sliders.append(...(together() ? [add("everybody", data.groups.map((_, g) => g))] : groups.map((group, a) => add(group, members[a]))));
      sliders.fields = fields;
    }
    const useless = (of, key) => key in NAMES && of.mcc < data.collapsed; // one answer for everybody is fair to nobody
    const number = (of, key) => (of === NOTHING || useless(of, key) ? "–" : fixed(of[key]));
    // the rates of each group at its own threshold; what they give together depends on all of them
    function byGroup() {
      const rows = sliders.fields.map(({which}, g) => [part.attribute.groups[g], fixed(nowCuts()[which[0]], 2), ...groupRates(g, Math.round(nowCuts()[which[0]] * steps)).map(percent)]);
      return el("table", {}, el("caption", {text: "Each group at its own threshold"}),
        el("thead", {}, el("tr", {}, ...["group", "threshold", ...Object.values(RATES)].map((n) => el("th", {scope: "col", text: n})))),
        el("tbody", {}, ...rows.map((row) => el("tr", {"data-group": row[0]}, ...row.map((text, n) => (n ? el("td", {class: "num", text}) : el("th", {scope: "row"}, el("bdi", {text}))))))));
    }
    const NUMBERS = {accuracy: "accuracy", balanced_accuracy: "balanced accuracy", mcc: "MCC", selection_rate: "selected", sp: "SP", eo: "EO", eqo: "EQO"};
    const made = figure(part, "thresholds", "Moving the thresholds", () => modelName(part) + ": people with a score above the threshold are predicted favourable. The curves show one threshold for everybody; the table, what the sliders say. Thresholds that differ by group need the group of each person when decisions are made, which the law may forbid."
      + (data.minCell > 1 ? " " + merging(part) + ", so the curves may be off by up to " + (data.minCell - 1) + " of each." : "") + (new Set(own()).size > 1 ? " This model has a threshold for each group: " + data.groups.map((g, n) => g + ": " + fixed(own()[n], 2)).join("; ") + "." : ""),
      (body) => {
        buildSliders();
        for (const {input, output, which} of sliders.fields) {
          const mine = which.map((g) => nowCuts()[g]), ends = [...new Set([Math.min(...mine), Math.max(...mine)].map((v) => fixed(v, 2)))];
          input.value = Math.round(mine[0] * steps);
          output.textContent = ends.join(" to ");
          input.setAttribute("aria-valuetext", ends.join(" to "));
        }
        const before = exact(), same = state.cuts && new Set(state.cuts).size === 1;
        const after = !state.cuts ? before : same ? results(Math.round(state.cuts[0] * steps)) : NOTHING;
        out.replaceChildren(el("table", {}, el("caption", {text: "On the test rows, by " + part.attributeName}),
          el("thead", {}, el("tr", {}, el("th", {scope: "col", text: "thresholds"}), ...Object.values(NUMBERS).map((n) => el("th", {scope: "col", text: n})))),
          el("tbody", {}, ...[["as the model decides", before, "before"], ["with these thresholds", after, "after"]].map(([name, of, key]) => el("tr", {"data-row": key}, el("th", {scope: "row", text: name}), ...Object.keys(NUMBERS).map((k) => el("td", {class: "num", "data-metric": k, text: number(of, k)})))))));
        if (state.cuts && !together()) out.append(byGroup());
        const wide = width(body, 820), curve = [];
        for (let k = 0; k <= steps; k++) {
          const at = k / steps, of = results(k);
          for (const [key, name] of [["accuracy", "accuracy"], ["mcc", "MCC"], ["selection_rate", "selected"], [state.metric in NAMES ? state.metric : "eqo", (state.metric in NAMES ? state.metric : "eqo").toUpperCase()]]) curve.push({at, value: useless(of, key) ? NaN : of[key], name});
        }
        const names = [...new Set(curve.map((d) => d.name))], colours = ["var(--ink)", "#E69F00", "#56B4E9", "#D55E00"];
        const defined = curve.filter((d) => Number.isFinite(d.value));
        const marks = names.map((name, n) => Plot.line(defined.filter((d) => d.name === name), {x: "at", y: "value", stroke: colours[n], strokeWidth: 2}));
        const cuts = [...new Set(nowCuts().map((c) => c.toFixed(4)))].map(Number);
        marks.push(Plot.ruleX(cuts, {stroke: "var(--accent)", strokeWidth: 1.5, strokeDasharray: "4 3"}));
        marks.push(tip(defined, {x: "at", y: "value", title: (d) => "threshold " + fixed(d.at, 2) + "\n" + d.name + " " + fixed(d.value)}));
        if (!body.childNodes.length) body.append(sliders, out, curves);
        curves.replaceChildren(keys(names, colours), drawing("Accuracy, MCC, selection rate and fairness against one threshold for everybody", {
          width: wide, height: Math.min(300, 0.5 * wide + 40), marginLeft: 44, marginBottom: 40, marginTop: 12,
          x: {domain: [0, 1], label: "threshold", grid: true, labelArrow: "none"}, y: {domain: [Math.min(0, ...defined.map((d) => d.value)), 1], label: null, grid: true}, marks,
        }));
      },
      () => {
        const rows = [];
        for (let k = 0; k <= steps; k += 4) { const of = results(k); rows.push([fixed(k / steps, 2), ...Object.keys(NUMBERS).map((key) => number(of, key))]); }
        return {columns: ["threshold for everybody", ...Object.values(NUMBERS)], rows, caption: modelName(part) + ", by " + part.attributeName };
      });
    return made;
  }

  // 6. rows over clients and groups; 7. fairness at each client

  // rows of each client, and of all of them last: [[no, yes], ...] by group
  function localCells(part) {
    const {data} = part;
    const a = part.state.attribute, groups = part.attribute.groups.length, names = [...data.local.clients, "all clients"];
    part.local ??= [];
    const counts = (part.local[a] ??= whole(data.local.rows[a]));
    return names.map((name, k) => {
      const cells = part.attribute.groups.map((_, g) => Array.from(counts.subarray(((part.model * names.length + k) * groups + g) * 2).slice(0, 2)));
      return {name, cells, rows: cells.flat().reduce((a, b) => a + b, 0)};
    });
  }
  const held = (part, rows) => (rows || part.data.minCell <= 1 ? String(rows) : "too few");
  const few = (part) => (part.data.minCell > 1 ? " Where a client has fewer than " + part.data.minCell + " rows of a group and outcome, these are not shown, and all others are rounded to multiples of " + part.data.minCell + "." : "");
  const others = (n) => (n ? " " + n + (n === 1 ? " smaller client is" : " smaller clients are") + " in the files only." : "");

  function rowsView(part) {
    if (!part.data.local) return null;
    const {data} = part;
    return figure(part, "rows", "Rows over clients and groups", () => "Training rows that each client holds, seed " + data.seeds[part.state.modelSeed] + "." + few(part) + others(data.local.hidden),
      (body) => {
        const wide = width(body, 820), flat = localCells(part).slice(0, -1).flatMap(({name, cells}) => cells.map((cell, g) => ({name, g, group: part.attribute.groups[g], rows: cell.reduce((a, b) => a + b, 0)})));
        const names = data.local.clients, {label, margin} = beside(names, 144);
        body.replaceChildren(keys(part.attribute.groups, GROUP_COLOURS), drawing("Rows of each client by " + part.attributeName, {
          width: wide, height: 60 + 20 * names.length, marginLeft: margin, marginBottom: 36, marginTop: 8,
          x: {label: "rows", grid: true, labelArrow: "none"}, y: {domain: names, label: null, tickFormat: label},
          marks: [
            Plot.barX(flat, {x: "rows", y: "name", z: "g", order: "g", fill: (d) => GROUP_COLOURS[d.g % GROUP_COLOURS.length], title: (d) => d.name + "\n" + d.group + ": " + d.rows.toLocaleString("en") + " rows", tip: {fill: "var(--paper)", stroke: "var(--soft)"}}),
          ],
        }));
      },
      () => ({columns: ["client", ...part.attribute.groups, "all", "favourable"], caption: "Training rows, seed " + data.seeds[part.state.modelSeed],
        rows: localCells(part).slice(0, -1).map(({name, cells, rows}) => [name, ...cells.map((c) => held(part, c[0] + c[1])), held(part, rows), held(part, cells.reduce((a, c) => a + c[1], 0))])}));
  }

  function localView(part) {
    if (!part.data.local) return null;
    const {data, state} = part;
    const metric = () => (state.metric in NAMES ? state.metric : "eqo");
    const cache = new Map();
    function values(of, key) {
      if (!cache.has(of[key])) cache.set(of[key], key.endsWith("-enough") ? new Uint8Array(bytes(of[key])) : numbers(of[key]));
      return cache.get(of[key]);
    }
    function every() {
      const fairness = data.local.fairness[state.attribute], {metrics} = data.local;
      return localCells(part).map(({name, rows}, k, all) => {
        const at = part.model * all.length + k, found = {name, rows, sure: {}};
        for (const key of Object.keys(metrics)) found[key] = values(metrics, key)[at];
        for (const key of Object.keys(NAMES)) { // one answer for everybody is fair to nobody
          const told = !(found.mcc < data.collapsed);
          found[key] = told ? values(fairness, key)[at] : NaN;
          found.sure[key] = told && !!values(fairness, key + "-enough")[at];
        }
        return found;
      });
    }
    const rows = () => every().slice(0, -1);
    function overall() {
      const all = every().at(-1);
      for (const key of Object.keys(NAMES)) if (!all.sure[key]) all[key] = NaN;
      return all;
    }
    function lowest() {
      const sure = rows().filter((r) => r.sure[metric()]).sort((a, b) => a[metric()] - b[metric()]), all = overall()[metric()];
      const together = Number.isFinite(all) ? " All clients together: " + fixed(all) + "." : "";
      if (sure.length === 1) return together + " Only " + sure[0].name + " has enough people, with " + fixed(sure[0][metric()]) + ".";
      if (sure.length) return together + " Lowest where there are enough people: " + sure[0].name + " with " + fixed(sure[0][metric()]) + ".";
      return together + " No client has enough people.";
    }
    return figure(part, "local", "Fairness at each client", () => modelName(part) + " on the rows that each client holds (and trained on), beside all clients' rows together (line). Hollow: fewer than two groups have " + data.least + " such people, too few to tell." + lowest() + few(part) + others(data.local.hidden),
      (body) => {
        const all = rows(), usable = all.filter((r) => Number.isFinite(r[metric()])), wide = width(body, 820), global = overall()[metric()];
        if (!usable.length) { body.replaceChildren(nothing("Undefined at every client: the model collapsed there, or none has " + (data.minCell > 1 ? data.minCell + " " : "") + "such people of two groups.")); return; }
        const names = data.local.clients, {label, margin} = beside(names, 144), most = Math.max(...all.map((r) => r.rows));
        body.replaceChildren(drawing(NAMES[metric()] + " at each client", {
          width: wide, height: 60 + 20 * names.length, marginLeft: margin, marginBottom: 36, marginTop: 8, marginRight: 30,
          x: {domain: [0, 1], label: cut(NAMES[metric()] + " by " + part.attributeName, wide - 60), grid: true, labelArrow: "none"}, y: {domain: names, label: null, tickFormat: label},
          marks: [
            Plot.ruleX([data.line], {stroke: "var(--soft)", strokeDasharray: "3 3"}),
            ...(Number.isFinite(global) ? [Plot.ruleX([global], {stroke: "var(--accent)", strokeWidth: 2})] : []),
            Plot.dot(usable, {x: metric(), y: "name", r: (d) => 3 + 5 * Math.sqrt(d.rows / most), stroke: "#D55E00", strokeWidth: 1.5, fill: (d) => (d.sure[metric()] ? "#D55E00" : "var(--paper)")}),
            Plot.text(all.filter((r) => !Number.isFinite(r[metric()])), {x: 0, y: "name", text: () => "too few people of a second group", textAnchor: "start", dx: 4, fill: "var(--soft)"}),
            tip(usable, {x: metric(), y: "name", title: (d) => d.name + "\n" + metric().toUpperCase() + " " + fixed(d[metric()]) + ", accuracy " + fixed(d.accuracy) + "\n" + held(part, d.rows) + " rows" + (d.sure[metric()] ? "" : "\ntoo few people to interpret")}),
          ],
        }));
      },
      () => {
        const row = (name, r) => [name, held(part, r.rows), fixed(r.accuracy), fixed(r.mcc), ...["sp", "eo", "eqo"].map((k) => (!Number.isFinite(r[k]) ? "undefined" : fixed(r[k]) + (r.sure && !r.sure[k] ? " (too few people to interpret)" : "")))];
        return {columns: ["client", "rows", "accuracy", "MCC", "SP", "EO", "EQO"], caption: modelName(part) + ", by " + part.attributeName, rows: [row("all clients", overall()), ...rows().map((r) => row(r.name, r))]};
      });
  }

  // 8. who took part

  function takingView(part) {
    const {data, state} = part;
    if (!data.taking) return null;
    const {clients, rounds, every} = data.taking;
    const server = ["lam", "beta", "fair_clients"];
    function outcome(k, r) {
      if (!part.taking) part.taking = new Uint8Array(bytes(data.taking.data));
      return part.taking[(part.model * clients.length + k) * rounds + r];
    }
    const noted = () => server.map((key) => part.find(key)).filter((series) => series && data.rounds.some((_, r) => Number.isFinite(part.at(series, state.strategy, state.modelSeed, r))));
    const sorts = () => clients.some((_, k) => Array.from({length: rounds}, (_, r) => outcome(k, r)).includes(2));
    return figure(part, "taking", "Who took part, and who counted as fair", () => modelName(part) + (sorts() ? "" : " (a strategy that counts no client as fair or unfair)") + (every > 1 ? ": one round in " + every + " is drawn, the table counts all." : ".") + others(data.taking.hidden),
      (body) => {
        const cells = [], wide = width(body, 1140);
        clients.forEach((name, k) => { for (let r = 0; r < rounds; r++) { const o = outcome(k, r); if (o) cells.push({name, round: r * every + 1, o}); } });
        const seen = [1, 2, 3, 4].filter((o) => cells.some((c) => c.o === o)), {label, margin: marginLeft} = beside(clients, 144);
        const boxes = [];
        for (const {name, round, o} of cells) boxes.push({name, x1: round - every / 2, x2: round + every / 2, o, round});
        body.replaceChildren(keys(seen.map((o) => OUTCOMES[o]), seen.map((o) => OUTCOME_COLOURS[o])), drawing("What became of each client in each round", {
          width: wide, height: 50 + 16 * clients.length, marginLeft, marginBottom: 34, marginTop: 8,
          x: {label: "round", domain: [0.5, rounds * every + 0.5], tickFormat: "d", labelArrow: "none"}, y: {domain: clients, label: null, tickFormat: label, padding: 0.12},
          marks: [
            Plot.barX(boxes, {x1: "x1", x2: "x2", y: "name", fill: (d) => OUTCOME_COLOURS[d.o], insetLeft: 0.3, insetRight: 0.3}),
            tip(boxes, {x: "round", y: "name", title: (d) => d.name + ", round " + d.round + ": " + OUTCOMES[d.o]}),
          ],
        }));
        for (const series of noted()) {
          const points = data.rounds.map((round, r) => ({round, value: part.at(series, state.strategy, state.modelSeed, r)})).filter((d) => Number.isFinite(d.value));
          body.append(el("p", {class: "hint", text: series.name}), drawing(series.name + " over the rounds", {
            width: wide, height: 116, marginLeft, marginBottom: 36, marginTop: 8, x: {label: "round", domain: [0.5, rounds * every + 0.5], tickFormat: "d", labelArrow: "none"}, y: {label: null, domain: [0, Math.max(1, ...points.map((d) => d.value))], ticks: 3, grid: true},
            marks: [Plot.lineY(points, {x: "round", y: "value", stroke: "var(--accent)", strokeWidth: 2, curve: series.key === "fair_clients" ? "step" : "linear"}), tip(points, {x: "round", y: "value", title: (d) => "round " + d.round + ": " + fixed(d.value)})],
          }));
        }
        if (data.taking.reasons.length) body.append(el("p", {class: "hint", text: "Reasons, of all strategies and seeds: " + data.taking.reasons.map(([name, reason, times]) => name + ": " + reason + " (" + times + " times)").join("; ")}));
      },
      () => ({columns: ["client", "rounds it was asked", "counted as fair", "dropped", "took no part"], caption: modelName(part),
        rows: clients.map((name, k) => {
          if (!part.times) part.times = whole(data.taking.times);
          const [used, fair, dropped, refused] = part.times.subarray((part.model * clients.length + k) * 4);
          return [name, ...[used + fair + dropped, fair, dropped, refused].map(String)];
        })}));
  }

  // --- start, redraw when the width changes, and follow a run that goes on

  // what is wider than the screen can be reached and scrolled with the keyboard
  function scrollable() {
    for (const box of document.querySelectorAll(".wide")) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", box.querySelector("caption")?.textContent || "Table");
      } else for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
    }
  }
  function start(kept = new Map()) {
    PARTS.clear();
    for (const root of document.querySelectorAll(".charts[data-part]")) {
      const number = root.dataset.part, data = JSON.parse(document.getElementById("p" + number + "-data").textContent);
      PARTS.set(number, new Part(root, data, kept.get(number)));
    }
    scrollable();
    document.documentElement.dataset.drawn = "yes";
  }
  let before = document.documentElement.clientWidth, waiting = 0;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth === before) return;
    before = document.documentElement.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => { for (const part of PARTS.values()) part.update(); scrollable(); }, 120);
  });
  start();

  if ("live" in document.body.dataset) {
    const status = document.getElementById("live");
    let version = Number(document.body.dataset.live), lost = 0;
    // where something is, so that it can be found in the new page
    const place = (node) => (node.closest("article")?.id ?? "") + " " + (node.closest("[data-chart]")?.dataset.chart ?? "");
    const focusable = (at) => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")].filter((node) => place(node) === at);
    async function refresh() {
      const answer = await fetch(location.pathname, {cache: "no-store"});
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      version = Number(fresh.body.dataset.live);
      const kept = new Map([...PARTS].map(([number, part]) => [number, part.keep()]));
      const open = new Set([...document.querySelectorAll(".answer details[open]")].map(place));
      const active = document.activeElement, near = focusable(place(active)).indexOf(active), top = scrollY;
      document.getElementById("content").replaceWith(document.adoptNode(fresh.getElementById("content")));
      document.title = fresh.title;
      for (const details of document.querySelectorAll(".answer details")) details.open = open.has(place(details));
      start(kept);
      scrollTo(0, top);
      if (near >= 0) focusable(place(active))[near]?.focus({preventScroll: true});
    }
    async function poll() {
      try {
        const state = await (await fetch("state", {cache: "no-store"})).json();
        lost = 0;
        if (state.version !== version) {
          await refresh();
          status.textContent = "Watching: last change " + new Date().toLocaleTimeString();
        }
        if (state.finished) { status.textContent = "The run has finished."; return; }
      } catch { // a request may be lost; three in a row mean that nobody answers any more
        if (++lost === 3) { status.textContent = "Watching has ended."; return; }
      }
      setTimeout(poll, 2000);
    }
    poll();
  }
})();
