"use strict";
// Draws the charts declared in the page's JSON: all share one step axis, so zoom and cursor move through all of them.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const many = data.variants.length > 1;
  const dashes = ["", "7 3", "2 3", "9 3 2 3"];
  const state = { env: 0, hidden: new Set() };
  const shared = { range: null, cursor: null };
  const live = document.createElement("div");
  live.className = "unseen";
  live.setAttribute("aria-live", "polite");
  document.body.append(live);

  function tag(name, attributes = {}, ...children) {
    const svg = /^(svg|g|path|line|rect|text|circle|clipPath|title)$/.test(name);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  }

  const round = (v) => Math.round(v * 10) / 10;
  const grouped = (v) => Math.round(v).toLocaleString("en-US");

  function compact(v) {
    const size = Math.abs(v);
    if (size >= 1e6) return `${+(v / 1e6).toPrecision(4)}M`;
    if (size >= 1e4) return `${+(v / 1e3).toPrecision(4)}k`;
    if (size >= 1e3) return grouped(v);
    return size && size < 1e-3 ? v.toExponential(1).replace("e-", "e−") : `${+v.toPrecision(3)}`.replace("-", "−");
  }
  const stepName = (v, most) =>
    !v
      ? "0"
      : most >= 1e6
        ? `${+(v / 1e6).toPrecision(4)}M`
        : most >= 1e4
          ? `${+(v / 1e3).toPrecision(4)}k`
          : grouped(v);
  const value = (v, unit) => (unit === "share" ? `${Math.abs(v) < 1e-7 ? 0 : +(100 * v).toPrecision(3)}%` : compact(v));

  function niceTicks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power;
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
    return ticks;
  }

  function logTicks(low, high) {
    const decades = Math.log10(high / low);
    const steps = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : decades > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const ticks = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
      for (const m of steps) if (m * 10 ** p >= low && m * 10 ** p <= high) ticks.push(m * 10 ** p);
    return ticks.length > 1 ? ticks : niceTicks(low, high, 4).filter((t) => t > 0);
  }

  function marker(shape, x, y, r) {
    const s = r * 0.9,
      t = r * 1.25;
    return [
      `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
      `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
      `M${x} ${y - t}L${x + t} ${y + s}H${x - t}z`,
      `M${x - t} ${y - s}H${x + t}L${x} ${y + t}z`,
      `M${x - r} ${y - r}l${2 * r} ${2 * r}m${-2 * r} 0l${2 * r} ${-2 * r}`,
      `M${x} ${y - r}v${2 * r}m${-r} ${-r}h${2 * r}`,
    ][shape % 6];
  }
  const diamond = (x, y, r) => `M${x} ${y - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}z`;

  function swatch(look) {
    const svg = tag("svg", { width: 26, height: 12, "aria-hidden": "true", class: `swatch ${look.colour}` });
    svg.append(
      tag("path", { d: "M1 6H25", class: "line" + (look.quiet ? " quiet" : ""), "stroke-dasharray": look.dash }),
    );
    if (look.shape !== null) svg.append(tag("path", { d: marker(look.shape, 13, 6, 3), class: "mark" }));
    return svg;
  }
  // One variant: quantities differ by colour and dash. Several: variants by colour and marker, quantities by dash.
  const look = (variant, line, quiet) => ({
    colour: `s${(many ? variant : line) % 7}`,
    dash: dashes[line % 4],
    shape: many && !quiet ? variant : null,
    quiet,
  });

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.spec = data.charts.find((c) => c.id === figure.dataset.chart);
      this.fixed = figure.dataset.env === undefined ? null : +figure.dataset.env;
      this.view = this.fixed === null ? shared : { range: null, cursor: null };
      this.plot = figure.querySelector(".plot");
      this.legend = figure.querySelector(".legend");
      this.words = figure.querySelector(".words p");
      this.title = figure.querySelector("h3").textContent;
      this.hidden = new Set();
      this.row = 0;
      this.listen();
    }

    get env() {
      return data.envs[this.fixed ?? state.env];
    }
    get variants() {
      return Object.keys(this.env.curves)
        .map(Number)
        .filter((v) => !state.hidden.has(v));
    }
    // Short runs' return is drawn from their games, which are closer together than rows.
    get steps() {
      return (this.spec.id === "return" && this.env.fine) || this.env.steps;
    }
    get domain() {
      return this.view.range ?? [0, this.env.last];
    }

    draw() {
      this.width = Math.max(240, Math.floor(this.plot.clientWidth));
      this.words.textContent = this.env.words[this.spec.id];
      this.svg = tag("svg", {
        role: "img",
        "aria-label": `${this.title}, ${this.env.name}. ${this.words.textContent}`,
      });
      this.legend.replaceChildren();
      this.series = [];
      this.frame = this.output = null;
      ({ lines: () => this.drawLines(), heatmap: () => this.drawHeatmap(), timeline: () => this.drawTimeline() })[
        this.spec.kind
      ]();
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.overlay = tag("g", { class: "overlay" });
      this.svg.append(this.overlay);
      this.plot.replaceChildren(this.svg);
      this.readOut();
    }

    empty(text) {
      this.height = 60;
      this.svg.append(tag("text", { x: 0, y: 34, class: "label" }, text));
    }

    // The step axis, and a group clipped to the drawing area; `frame` keeps the scale.
    axes(left, right, top, bottom) {
      const [from, to] = this.domain;
      const x = (step) => left + ((step - from) / (to - from)) * (right - left);
      this.frame = { left, right, top, bottom, x, step: (px) => from + ((px - left) / (right - left)) * (to - from) };
      const axis = tag("g", { class: "axis" });
      const ticks = niceTicks(from, to, Math.max(2, (right - left) / 75));
      for (const tick of ticks) {
        const at = round(x(tick)),
          last = tick === ticks.at(-1) && at > right - 20;
        axis.append(tag("line", { x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
        axis.append(tag("text", { x: at, y: bottom + 17, "text-anchor": last ? "end" : "middle" }, stepName(tick, to)));
      }
      axis.append(tag("line", { x1: left, x2: right, y1: bottom, y2: bottom }));
      axis.append(
        tag(
          "text",
          { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle", class: "label" },
          "environment steps",
        ),
      );
      const id = `clip-${this.figure.id}`;
      const clip = tag(
        "clipPath",
        { id },
        tag("rect", { x: left, y: top - 4, width: right - left + 5, height: bottom - top + 8 }),
      );
      const body = tag("g", { "clip-path": `url(#${id})` });
      this.svg.append(clip, axis, body);
      return body;
    }

    drawLines() {
      const { spec, env } = this;
      this.series = this.collect();
      this.list(many && spec.lines.length > 1);
      if (!this.series.length) return this.empty("Nothing to draw: every variant is hidden or has no measurement.");
      const shown = this.series.filter((s) => s.shown);
      const levels = (env.references[spec.id] || []).filter((r) => r.variant === null);

      const [low, high] = this.extent(shown, levels);
      this.height = this.fixed !== null ? 210 : this.width >= 720 ? 330 : 250;
      const names = this.endNames(shown);
      const [left, top, bottom] = [46, 26, this.height - 40];
      const right = this.width - Math.max(12, ...names.map((name) => 12 + 6.9 * name.text.length));
      const y = spec.log
        ? (v) => bottom - (Math.log(v / low) / Math.log(high / low)) * (bottom - top)
        : (v) => bottom - ((v - low) / (high - low)) * (bottom - top);
      this.y = y;
      const grid = tag("g", { class: "gridlines" });
      for (const tick of spec.log ? logTicks(low, high) : niceTicks(low, high, 5)) {
        const at = round(y(tick));
        grid.append(tag("line", { x1: left, x2: right, y1: at, y2: at }));
        grid.append(tag("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, value(tick, spec.unit)));
      }
      this.svg.append(grid, tag("text", { x: 0, y: 12, class: "label" }, spec.y));
      const body = this.axes(left, right, top, bottom);
      for (const s of shown) body.append(this.drawCurve(s, shown.length));
      for (const level of levels) this.drawLevel(level, shown, body);
      if (!many) for (const s of shown) if (this.endInView(s)) this.nameEnd(s.end, levels, shown);
      this.placeNames(names);
    }

    endInView(s) {
      const [from, to] = this.domain;
      return s.end && s.end.step >= from && s.end.step <= to;
    }

    drawable(v) {
      return v !== null && v !== undefined && (!this.spec.log || v > 0);
    }

    // What can be drawn here: every line of every variant that is not switched off for the whole page.
    collect() {
      const { spec, env } = this;
      const several = spec.lines.length > 1;
      return this.variants.flatMap((v) =>
        spec.lines
          .map((line, i) => ({ line, i, curve: env.curves[v][line.column], key: `${v}:${line.column}` }))
          .filter((s) => s.curve)
          .map(({ line, i, curve, key }) => {
            const words = [many ? data.variants[v] : "", several || !many ? line.label : ""];
            const name = words.filter(Boolean).join(" · ");
            return {
              key,
              v,
              line,
              curve,
              name,
              brief: many && several ? line.short : name,
              end: (env.references[spec.id] || []).find((r) => r.variant === v),
              seeds: env.seeds[v].length,
              look: look(v, i, line.quiet),
              shown: !this.hidden.has(key),
            };
          }),
      );
    }

    // Lowest and highest value of the axis, from what lies within the steps in view.
    extent(shown, levels) {
      const { spec } = this;
      const [from, to] = this.domain;
      let [low, high] = [Infinity, -Infinity];
      const consider = (v) => {
        if (!this.drawable(v)) return;
        low = Math.min(low, v);
        high = Math.max(high, v);
      };
      for (const s of shown) {
        const { mean, low: below = [], high: above = [] } = s.curve;
        this.steps.forEach((step, i) => {
          if (step < from || step > to) return;
          for (const values of s.line.quiet ? [mean] : [mean, below, above]) consider(values[i]);
        });
        if (this.endInView(s)) consider(s.end.value);
      }
      for (const level of levels) consider(level.value);
      if (low > high) [low, high] = spec.log ? [0.1, 1] : [0, 1];
      if (spec.log) return [low / 1.25, high * 1.25];
      if (spec.zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
      if (high - low < 1e-12) high = low + (spec.unit === "share" ? 0.01 : 1);
      const pad = (high - low) * 0.06;
      high = spec.unit === "share" ? Math.max(0.01, high, Math.min(1, high + pad)) : high + pad;
      return [low < 0 ? low - pad : low, high];
    }

    // One variant's line with its interval, its seeds, its markers and the evaluation at its end.
    drawCurve(s, count) {
      const { steps, y } = this;
      const { x } = this.frame;
      const [from, to] = this.domain;
      const margin = (to - from) * 0.05;
      const visible = (i) => steps[i] >= from - margin && steps[i] <= to + margin;
      const at = (i, v) => `${round(x(steps[i]))} ${round(y(v))}`;
      const path = (values) => {
        let [d, pen] = ["", "M"];
        values.forEach((v, i) => {
          const draws = this.drawable(v) && visible(i);
          if (draws) d += pen + at(i, v);
          pen = draws ? "L" : "M";
        });
        return d;
      };
      const band = ({ low, high }) => {
        let [d, run] = ["", []];
        const close = () => {
          const back = [...run].reverse();
          if (run.length > 1)
            d += `M${run.map((i) => at(i, high[i])).join("L")}L${back.map((i) => at(i, low[i])).join("L")}z`;
          run = [];
        };
        steps.forEach((_, i) => {
          if (this.drawable(low[i]) && this.drawable(high[i]) && visible(i)) run.push(i);
          else close();
        });
        close();
        return d;
      };
      const group = tag("g", { class: s.look.colour, "data-series": s.key });
      const { curve, line } = s;
      if (curve.low && !line.quiet) {
        group.append(tag("path", { d: band(curve), class: "band" }));
        if (curve.seeds.length <= 10 && (this.spec.lines.length === 1 || count <= 3))
          for (const seed of curve.seeds) group.append(tag("path", { d: path(seed), class: "seed" }));
      }
      const style = { class: line.quiet ? "line quiet" : "line", "stroke-dasharray": s.look.dash };
      group.append(tag("path", { d: path(curve.mean), ...style }));
      const known = [...steps.keys()].filter((i) => this.drawable(curve.mean[i]) && steps[i] >= from && steps[i] <= to);
      const gap = Math.max(1, Math.ceil(known.length / 7));
      const marked = known.filter((_, k) => (s.look.shape === null ? known.length === 1 : k % gap === (s.v * 2) % gap));
      const marks = marked.map((i) => marker(s.look.shape ?? 0, round(x(steps[i])), round(y(curve.mean[i])), 3));
      if (marks.length) group.append(tag("path", { d: marks.join(""), class: "mark" }));
      if (this.endInView(s))
        group.append(tag("path", { d: diamond(round(x(s.end.step)), round(y(s.end.value)), 6), class: "end" }));
      s.last = known.at(-1);
      return group;
    }

    // A level is named on its line where no curve is in the way, otherwise in the legend.
    drawLevel(level, shown, body) {
      const { left, right, top, bottom } = this.frame;
      const at = round(this.y(level.value));
      const text = `${level.label} ${value(level.value, this.spec.unit)}`;
      const long = 6.2 * text.length;
      body.append(tag("line", { x1: left, x2: right, y1: at, y2: at, class: "ref" }));
      for (const x0 of [left + 6, (left + right - long) / 2, right - long - 16])
        for (const y0 of [at - 5, at + 14])
          if (y0 > top + 4 && y0 < bottom - 2 && this.clear(x0 - 6, x0 + long + 6, y0 - 14, y0 + 5, shown)) {
            body.append(tag("text", { x: round(x0), y: y0, class: "note" }, text));
            return;
          }
      const dash = tag("path", { d: "M1 6H25", class: "ref" });
      const sample = tag("svg", { width: 26, height: 12, "aria-hidden": "true" }, dash);
      this.legend.append(tag("span", { class: "key-level" }, sample, text));
    }

    // Whether no curve or band passes through a box.
    clear(left, right, top, bottom, shown) {
      const { steps, y } = this;
      const { x } = this.frame;
      const meets = ({ curve, line }) =>
        curve.mean.some((v, i) => {
          if (!this.drawable(v)) return false;
          const j = this.drawable(curve.mean[i + 1]) ? i + 1 : i;
          const [xa, xb] = [x(steps[i]), x(steps[j])];
          if (xb < left || xa > right) return false;
          const edges = line.quiet || !curve.low ? [curve.mean] : [curve.low, curve.high];
          const ys = edges.flatMap((values) => {
            const [ya, yb] = [i, j].map((k) => y(this.drawable(values[k]) ? values[k] : curve.mean[k]));
            const along = (px) => (xb > xa ? ya + ((yb - ya) * (px - xa)) / (xb - xa) : ya);
            return [along(Math.max(xa, left)), along(Math.min(xb, right))];
          });
          return Math.min(...ys) < bottom && Math.max(...ys) > top;
        });
      return !shown.some(meets);
    }

    // The evaluation is named beside its mark where nothing is in the way; the legend has its number anyway.
    nameEnd(end, levels, shown) {
      const { right, top, bottom } = this.frame;
      const at = this.y(end.value);
      const text = `${end.label} ${value(end.value, this.spec.unit)}`;
      const long = 7 * text.length;
      for (const y0 of [at - 10, at + 18]) {
        const free = levels.every((level) => this.y(level.value) < y0 - 13 || this.y(level.value) > y0 + 4);
        const inside = y0 > top + 8 && y0 < bottom - 2;
        if (!inside || !free || !this.clear(right - 12 - long, right - 12, y0 - 12, y0 + 4, shown)) continue;
        this.svg.append(tag("text", { x: right - 12, y: round(y0), "text-anchor": "end", class: "note strong" }, text));
        return;
      }
    }

    // Names at the lines' ends, where there is room for them and the legend is not enough.
    endNames(shown) {
      const several = this.spec.lines.length > 1;
      if (shown.length < 2 || (many && several) || this.width < (many ? 720 : 400)) return [];
      return shown.map((s) => {
        const text = many ? data.variants[s.v] : s.line.short;
        return { s, text: text.length > 30 ? `${text.slice(0, 29)}…` : text };
      });
    }

    placeNames(names) {
      const { right, bottom } = this.frame;
      const placed = names
        .filter(({ s }) => s.last !== undefined)
        .map((name) => ({ ...name, at: this.y(name.s.curve.mean[name.s.last]) }))
        .sort((a, b) => a.at - b.at);
      for (let pass = 0; pass < 12; pass++)
        for (let i = 1; i < placed.length; i++) {
          const lack = 14 - (placed[i].at - placed[i - 1].at);
          if (lack <= 0) continue;
          placed[i].at += lack / 2;
          placed[i - 1].at -= lack / 2;
        }
      for (let i = placed.length - 1, limit = bottom - 2; i >= 0; i--, limit -= 14)
        placed[i].at = Math.min(limit, placed[i].at);
      for (const { s, text, at } of placed)
        this.svg.append(tag("text", { x: right + 9, y: round(at + 4), class: `direct ${s.look.colour}` }, text));
    }

    // The legend: one entry per line; where variants have several lines each, one row per variant.
    list(rows) {
      const seeds = (s) => (s.seeds > 1 && !s.line.quiet ? ` (${s.seeds} seeds)` : "");
      const entry = (s) => {
        s.output = tag("b");
        return tag(
          "button",
          {
            type: "button",
            class: "key-entry",
            "data-key": s.key,
            "aria-pressed": String(s.shown),
            title: "Show or hide",
            onclick: () => {
              this.hidden.has(s.key) ? this.hidden.delete(s.key) : this.hidden.add(s.key);
              this.draw();
              this.legend.querySelector(`[data-key="${s.key}"]`)?.focus();
            },
          },
          swatch(s.look),
          tag("span", { class: "unseen" }, rows ? data.variants[s.v] : ""),
          tag("span", {}, s.brief + (rows ? "" : seeds(s))),
          s.output,
        );
      };
      if (!rows) {
        this.legend.append(...this.series.map(entry));
        return;
      }
      for (const v of new Set(this.series.map((s) => s.v))) {
        const own = this.series.filter((s) => s.v === v);
        this.legend.append(
          tag(
            "div",
            { class: "key-row" },
            tag("span", { class: "key-name" }, data.variants[v] + seeds(own[0])),
            ...own.map(entry),
          ),
        );
      }
    }

    drawHeatmap() {
      const panels = this.env.spikes
        ? this.variants.filter((v) => this.env.spikes.panels[v]).map((v) => [v, this.env.spikes.panels[v]])
        : [];
      if (!panels.length) return this.empty("No spike ratios were measured for what is shown.");
      this.rows = [];
      const layers = panels.reduce((n, [, p]) => Math.max(n, p.layers.length), 0);
      const size = Math.max(13, Math.min(34, 190 / layers));
      const left = Math.min(120, 14 + 6.4 * Math.max(...panels.flatMap(([, p]) => p.layers.map((l) => l.length))));
      const right = this.width - 12,
        head = many ? 22 : 4;
      const total = panels.reduce((sum, [, p]) => sum + head + p.layers.length * size + 6, 0);
      this.height = total + 84;
      const limits = panels.map(([, p]) => p.threshold).filter((limit) => limit !== null);
      const threshold = limits.length ? Math.max(...limits) : null;
      const most = Math.max(1.15 * (threshold ?? 1.2), ...panels.flatMap(([, p]) => p.mean.flat()));
      const shade = (v) => Math.max(0, Math.min(15, Math.floor((Math.log(v) / Math.log(most)) * 16)));
      const body = this.axes(left, right, 4, total);
      const { x } = this.frame;
      const [from, to] = this.domain;
      let top = 4,
        dots = "";
      for (const [v, panel] of panels) {
        if (many) {
          const name = data.variants[v],
            most = Math.floor((right - 4) / 7);
          const shown = name.length > most ? `${name.slice(0, most - 1)}…` : name;
          this.svg.append(
            tag("text", { x: 4, y: top + 13, class: "label strong" }, shown, tag("title", {}, name)),
          );
          top += head - 4;
        }
        panel.layers.forEach((layer, row) => {
          const at = top + row * size;
          this.svg.append(
            tag("text", { x: left - 7, y: round(at + size / 2 + 4), "text-anchor": "end", class: "label" }, layer),
          );
          this.rows.push({ panel, row, layer, at, size, v });
          panel.steps.forEach((step, i) => {
            const before = i ? panel.steps[i - 1] : Math.max(0, step - (panel.steps[1] ?? step * 2) + step);
            if (step < from || before > to || panel.mean[row][i] === null) return;
            const x0 = x(before),
              x1 = x(step);
            body.append(
              tag("rect", {
                x: round(x0),
                y: round(at),
                width: Math.max(0.6, round(x1 - x0 + 0.4)),
                height: round(size - 1),
                class: `h${shade(panel.mean[row][i])}`,
              }),
            );
            if (panel.threshold !== null && panel.top[row][i] > panel.threshold)
              dots += marker(
                0,
                round((x0 + x1) / 2),
                round(at + size / 2 - 0.5),
                Math.max(0.8, Math.min(2.2, (x1 - x0) * 0.3)),
              );
          });
        });
        top += panel.layers.length * size + 10;
      }
      if (dots) body.append(tag("path", { d: dots, class: "over" }));
      this.drawRamp(left, right, threshold, most);
      this.row = Math.min(this.row, this.rows.length - 1);
      this.output = tag("span", { class: "reading" });
      this.legend.append(this.output);
    }

    // The colours' scale, logarithmic from 1, with the reset threshold on it.
    drawRamp(left, right, threshold, most) {
      const top = this.height - 34;
      const long = threshold === null ? "ratio" : "ratio; line: reset threshold";
      const words = right - left - 7 * long.length >= 150 ? long : "ratio";
      const width = Math.min(260, right - left - 12 - 7 * words.length);
      const bar = tag("g", { class: "axis" });
      const place = (ratio) => round(left + (Math.log(ratio) / Math.log(most)) * width);
      for (let i = 0; i < 16; i++) {
        const box = { x: left + (i * width) / 16, y: top, width: width / 16 + 0.5, height: 9 };
        bar.append(tag("rect", { ...box, class: `h${i}` }));
      }
      const limit = threshold === null ? -Infinity : place(threshold);
      const under = { y: top + 24, "text-anchor": "middle" };
      if (threshold !== null) {
        bar.append(tag("line", { x1: limit, x2: limit, y1: top - 4, y2: top + 13, class: "limit" }));
        bar.append(tag("text", { x: limit, ...under, class: "strong" }, compact(threshold)));
      }
      for (const tick of [1, 1.5, 2, 3, 5, 10, 20, 50, 100])
        if (tick <= most && Math.abs(place(tick) - limit) >= 18)
          bar.append(tag("text", { x: place(tick), ...under }, compact(tick)));
      bar.append(tag("text", { x: left + width + 12, y: top + 9, class: "label" }, words));
      this.svg.append(bar);
    }

    drawTimeline() {
      const resets = this.env.resets;
      const shown = resets ? this.variants.filter((v) => !this.hidden.has(`${v}:resets`)) : [];
      if (!resets) return this.empty("No layer was reset.");
      const size = Math.max(14, Math.min(34, 200 / resets.layers.length));
      const left = Math.min(120, 14 + 6.4 * Math.max(...resets.layers.map((l) => l.length)));
      const right = this.width - 12,
        bottom = 8 + resets.layers.length * size;
      this.height = bottom + 42;
      const grid = tag("g", { class: "gridlines" });
      this.svg.append(grid);
      resets.layers.forEach((layer, i) => {
        const at = round(8 + (i + 0.5) * size);
        grid.append(tag("line", { x1: left, x2: right, y1: at, y2: at }));
        grid.append(tag("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, layer));
      });
      const body = this.axes(left, right, 4, bottom);
      const { x } = this.frame;
      const [from, to] = this.domain;
      for (const v of this.variants) {
        const s = {
          key: `${v}:resets`,
          v,
          line: { quiet: false },
          seeds: this.env.seeds[v].length,
          name: many ? data.variants[v] : "resets",
          brief: many ? data.variants[v] : "resets",
          look: { ...look(v, 0, false), dash: "", shape: v },
          shown: shown.includes(v),
          marks: resets.marks[v] || [],
        };
        this.series.push(s);
        if (!s.shown) continue;
        const shift = many ? ((this.variants.indexOf(v) + 0.5) / this.variants.length - 0.5) * size * 0.6 : 0;
        let d = "";
        for (const [step, layer, count] of s.marks)
          if (step >= from && step <= to)
            d += marker(
              v,
              round(x(step)),
              round(8 + (layer + 0.5) * size + shift),
              1.4 + Math.min(5, Math.sqrt(count)),
            );
        body.append(
          tag("g", { class: `timeline ${s.look.colour}`, "data-series": s.key }, tag("path", { d, class: "mark" })),
        );
      }
      this.list(false);
    }

    // Cursor line and the legend's numbers: at the cursor, or at the end when there is none.
    readOut(speak = false) {
      this.overlay.replaceChildren();
      const { cursor } = this.view,
        steps = this.steps,
        unit = this.spec.unit;
      const said = [];
      const index = cursor === null ? null : nearest(steps, cursor);
      if (this.spec.kind === "heatmap" && this.output) said.push(this.readHeat(cursor));
      for (const s of this.series) {
        if (s.marks) {
          const upTo = s.marks.filter((m) => cursor === null || m[0] <= cursor).reduce((n, m) => n + m[2], 0);
          s.output.textContent = `${grouped(upTo)}${cursor === null ? "" : " so far"}`;
        } else {
          const i = index ?? s.last,
            v = i === undefined ? null : s.curve.mean[i];
          let text = v === null || v === undefined ? "–" : value(v, unit);
          if (s.curve.low && !s.line.quiet && i !== undefined && s.curve.low[i] !== null)
            text += ` [${value(s.curve.low[i], unit)}, ${value(s.curve.high[i], unit)}]`;
          if (s.end) text += `  ◆ ${value(s.end.value, unit)}`;
          s.output.textContent = text;
          if (index !== null && s.shown && v !== null && v !== undefined && this.frame && (!this.spec.log || v > 0))
            this.overlay.append(
              tag("circle", { cx: this.frame.x(steps[index]), cy: this.y(v), r: 3.5, class: `dot ${s.look.colour}` }),
            );
        }
        if (s.shown) said.push(`${s.name} ${s.output.textContent}`);
      }
      if (cursor !== null && this.frame) {
        const { x, top, bottom, left, right } = this.frame,
          at = round(x(index === null ? cursor : (steps[index] ?? cursor)));
        if (at < left - 1 || at > right + 1) {
          this.overlay.replaceChildren();
          return;
        }
        const text = `step ${compact(index === null ? cursor : (steps[index] ?? cursor))}`;
        this.overlay.prepend(tag("line", { x1: at, x2: at, y1: top, y2: bottom, class: "cursor" }));
        const end = at > right - 70;
        if (this.spec.kind === "lines")
          this.overlay.append(
            tag(
              "text",
              { x: at + (end ? -5 : 5), y: top + 4, "text-anchor": end ? "end" : "start", class: "note strong" },
              text,
            ),
          );
        if (speak) live.textContent = `${text}: ${said.join("; ")}`;
      }
    }

    readHeat(cursor) {
      const place = this.rows[this.row],
        { panel, row, layer, at, size, v } = place;
      const i = cursor === null ? panel.steps.length - 1 : nearest(panel.steps, cursor);
      const [mean, top] = [panel.mean[row][i], panel.top[row][i]].map((ratio) => value(ratio));
      const where = `${many ? data.variants[v] + ", " : ""}${layer} at step ${compact(panel.steps[i])}`;
      const text = `${where}: mean ${mean}, highest member ${top}`;
      this.output.textContent = text;
      if (cursor !== null) {
        const { x, left, right } = this.frame;
        const x0 = Math.max(left, x(i ? panel.steps[i - 1] : 0)),
          x1 = Math.min(right, x(panel.steps[i]));
        if (x1 > x0)
          this.overlay.append(tag("rect", { x: x0, y: at, width: x1 - x0, height: size - 1, class: "cellbox" }));
      }
      return text;
    }

    zoom(factor) {
      const [from, to] = this.domain,
        centre = this.view.cursor ?? (from + to) / 2;
      this.show(centre - (centre - from) * factor, centre + (to - centre) * factor);
    }

    show(from, to) {
      const last = this.env.last,
        least = Math.min(last, 2 * (last / Math.max(2, this.steps.length)));
      from = Math.max(0, from);
      to = Math.min(last, to);
      if (to - from < least) {
        const c = (from + to) / 2;
        from = Math.max(0, c - least / 2);
        to = Math.min(last, from + least);
      }
      this.view.range = to - from > last * 0.999 ? null : [from, to];
      redraw(this.view);
    }

    reset() {
      this.view.range = null;
      redraw(this.view);
    }

    listen() {
      let start = null,
        box = null;
      const at = (event) => {
        const bounds = this.svg.getBoundingClientRect(),
          scale = this.width / bounds.width;
        const px = (event.clientX - bounds.left) * scale,
          py = (event.clientY - bounds.top) * scale;
        return [Math.max(this.frame.left, Math.min(this.frame.right, px)), py];
      };
      const move = (event) => {
        const [px, py] = at(event);
        if (this.spec.kind === "heatmap") {
          const found = this.rows.findIndex((r) => py >= r.at && py < r.at + r.size);
          if (found >= 0) this.row = found;
        }
        this.view.cursor = this.frame.step(px);
        follow(this.view);
      };
      this.plot.addEventListener("pointerdown", (event) => {
        if (!this.frame || event.button > 0) return;
        move(event);
        if (event.pointerType === "touch") return;
        start = at(event)[0];
        this.plot.setPointerCapture(event.pointerId);
      });
      this.plot.addEventListener("pointermove", (event) => {
        if (!this.frame) return;
        move(event);
        if (start === null) return;
        const now = at(event)[0];
        box?.remove();
        box = tag("rect", {
          class: "selection",
          x: Math.min(start, now),
          width: Math.abs(now - start),
          y: this.frame.top,
          height: this.frame.bottom - this.frame.top,
        });
        this.svg.append(box);
      });
      this.plot.addEventListener("pointerup", (event) => {
        if (start === null) return;
        const now = at(event)[0],
          from = this.frame.step(Math.min(start, now)),
          to = this.frame.step(Math.max(start, now));
        const dragged = Math.abs(now - start) > 6;
        start = null;
        box?.remove();
        box = null;
        if (dragged) this.show(from, to);
      });
      this.plot.addEventListener("pointerleave", (event) => {
        if (start === null && event.pointerType !== "touch") {
          this.view.cursor = null;
          follow(this.view);
        }
      });
      this.plot.addEventListener("dblclick", () => this.reset());
      this.plot.addEventListener("keydown", (event) => {
        if (!this.frame || event.ctrlKey || event.metaKey || event.altKey) return;
        const steps = this.steps,
          now = this.view.cursor === null ? steps.length : nearest(steps, this.view.cursor);
        const go = (i) => {
          this.view.cursor = steps[Math.max(0, Math.min(steps.length - 1, i))];
          follow(this.view, this);
        };
        const stride = event.shiftKey ? 10 : 1;
        const keys = {
          ArrowLeft: () => go(now - stride),
          ArrowRight: () => go(now + stride),
          Home: () => go(0),
          End: () => go(steps.length - 1),
          "+": () => this.zoom(0.5),
          "=": () => this.zoom(0.5),
          "-": () => this.zoom(2),
          0: () => this.reset(),
          Escape: () => {
            this.view.cursor = null;
            this.reset();
          },
        };
        if (this.spec.kind === "heatmap") {
          const rows = this.rows.length;
          keys.ArrowUp = () => {
            this.row = (this.row + rows - 1) % rows;
            go(now);
          };
          keys.ArrowDown = () => {
            this.row = (this.row + 1) % rows;
            go(now);
          };
        }
        if (keys[event.key]) {
          event.preventDefault();
          keys[event.key]();
        }
      });
    }
  }

  function nearest(steps, step) {
    let low = 0,
      high = steps.length - 1;
    while (high - low > 1) {
      const mid = (low + high) >> 1;
      if (steps[mid] < step) low = mid;
      else high = mid;
    }
    return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
  }

  const charts = [...document.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));
  const redraw = (view) => {
    for (const c of charts) if (!view || c.view === view) c.draw();
    tellRange();
  };
  const follow = (view, speaker) => {
    for (const c of charts) if (c.view === view) c.readOut(c === speaker);
  };

  const bar = document.querySelector(".toolbar");
  const range = tag("output", { class: "range", "aria-live": "polite" });
  const reset = tag(
    "button",
    {
      type: "button",
      class: "reset",
      onclick: () => {
        shared.range = null;
        redraw(shared);
      },
    },
    "Show all",
  );
  const main = charts.find((c) => c.fixed === null);
  function tellRange() {
    if (!main) return;
    const [from, to] = main.domain;
    range.textContent = `steps ${grouped(from)} to ${grouped(to)}`;
    reset.disabled = shared.range === null;
  }
  if (bar && main) {
    if (data.envs.length > 1) {
      const choice = tag("fieldset", { class: "choice" }, tag("legend", {}, "Environment"));
      data.envs.forEach((env, i) => {
        const radio = tag("input", {
          type: "radio",
          name: "env",
          value: i,
          onchange: () => {
            state.env = i;
            shared.range = shared.cursor = null;
            redraw(shared);
          },
        });
        radio.checked = i === 0;
        choice.append(tag("label", {}, radio, env.name));
      });
      bar.append(choice);
    }
    if (many) {
      const choice = tag("fieldset", { class: "choice" }, tag("legend", {}, "Variants"));
      data.variants.forEach((name, v) => {
        const box = tag("input", {
          type: "checkbox",
          "data-toggle": v,
          onchange: () => {
            box.checked ? state.hidden.delete(v) : state.hidden.add(v);
            for (const row of document.querySelectorAll(`[data-variant="${v}"]`)) row.hidden = !box.checked;
            redraw();
          },
        });
        box.checked = true;
        choice.append(tag("label", {}, box, swatch(look(v, 0, false)), name));
      });
      bar.append(choice);
    }
    bar.append(
      tag(
        "span",
        { class: "zoom" },
        range,
        tag("button", { type: "button", "aria-label": "Zoom in", onclick: () => main.zoom(0.5) }, "+"),
        tag("button", { type: "button", "aria-label": "Zoom out", onclick: () => main.zoom(2) }, "−"),
        reset,
      ),
    );
  }
  for (const key of document.querySelectorAll(".key[data-key]"))
    if (many) key.append(swatch(look(+key.dataset.key, 0, false)));

  redraw();
  let width = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    redraw();
  });
  const folded = () => [...document.querySelectorAll("details.words, details.try")].filter((d) => !d.open);
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = folded();
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => {
    for (const d of opened) d.open = false;
  });
  const video = document.querySelector("video");
  if (video && !matchMedia("(prefers-reduced-motion: reduce)").matches) video.play().catch(() => {});
  document.documentElement.dataset.drawn = charts.length;
})();
