"use strict";
// A figure, which is plain data in a few of Plotly's words, as SVG. Colours are variables of the page's style, so that
// another theme, and paper, need no second drawing. Every text is set as text.
isthmus.draw = (() => {
  const space = "http://www.w3.org/2000/svg";
  const pen = document.createElement("canvas").getContext("2d");
  const size = 13;
  // Narrower than this: less high, and names at the axis stand upright.
  const phone = 640;
  // How near the pointer must be to a point, in pixels, and how near for it to hide a bar behind it.
  const reach = 40;
  const hit = 12;
  const powers = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const symbols = {
    square: (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
    diamond: (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0Z`,
    "triangle-up": (r) => `M0,${-1.2 * r}L${1.15 * r},${0.8 * r}H${-1.15 * r}Z`,
    "triangle-down": (r) => `M0,${1.2 * r}L${1.15 * r},${-0.8 * r}H${-1.15 * r}Z`,
    cross: (r) => `M${-0.4 * r},${-r}h${0.8 * r}v${0.6 * r}h${0.6 * r}v${0.8 * r}h${-0.6 * r}v${0.6 * r}h${-0.8 * r}v${-0.6 * r}h${-0.6 * r}v${-0.8 * r}h${0.6 * r}Z`,
    x: (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
    star: (r) => [...Array(10)].map((_, i) => `${i ? "L" : "M"}${(i % 2 ? 0.55 : 1.35) * r * Math.sin((i * Math.PI) / 5)},${-(i % 2 ? 0.55 : 1.35) * r * Math.cos((i * Math.PI) / 5)}`).join("") + "Z",
  };
  const dashes = { dash: "7 5", dot: "2 4", dashdot: "8 4 2 4" };
  let count = 0;

  function make(parent, tag, attributes, styles = {}, text = "") {
    const one = document.createElementNS(space, tag);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, typeof value === "number" ? Number(value.toFixed(2)) : value);
    for (const [key, value] of Object.entries(styles)) if (value !== undefined) one.style.setProperty(key, value);
    if (text !== "") one.textContent = text;
    parent?.append(one);
    return one;
  }

  const colour = (name) => (typeof name === "string" && name[0] === "@" ? `var(--${name.slice(1)})` : name);
  const each = (value, index) => (Array.isArray(value) ? value[index] : value);
  const number = (value, digits) => (typeof value === "number" ? String(Number(value.toPrecision(digits))).replace("-", "−") : String(value));
  const known = (value) => value !== null && value !== undefined;

  function shade(stops, share) {
    const at = Math.min(Math.max(share, 0), 1);
    const next = Math.max(1, stops.findIndex(([end]) => at <= end));
    const [[low, from], [high, to]] = [stops[next - 1], stops[next]];
    return `color-mix(in srgb, ${colour(to)} ${Math.round((100 * (at - low)) / (high - low))}%, ${colour(from)})`;
  }

  function wide(text, points = size) {
    pen.font = `${points}px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  }

  // ---- axes

  // 1, 2 or 5 times a power of ten, at least `least`.
  function round(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((k) => k * power).find((one) => one >= least * (1 - 1e-9));
  }

  function ticksOf(axis, low, high, most) {
    if (axis.names) return axis.names.map((name, i) => [i, name]);
    if (axis.tickvals) return axis.tickvals.map((value, i) => [value, axis.ticktext?.[i] ?? number(value, 4)]);
    if (axis.type === "log") {
      const [first, last] = [Math.floor(low), Math.ceil(high)];
      const every = Math.max(1, Math.ceil((last - first) / most));
      const steps = last - first > 3 ? [1] : [1, 2, 5];
      const found = [];
      for (let e = first; e <= last; e += every)
        for (const k of steps) found.push([k * 10 ** e, Math.abs(e) < 4 ? number(k * 10 ** e, 2) : `10${String(e).replace("-", "⁻").replace(/\d/g, (d) => powers[d])}`]);
      return found;
    }
    let step = axis.dtick ?? round((high - low) / most);
    if (axis.integer) step = Math.max(1, Math.round(step));
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && found.length < 200; i++) found.push([i * step, number(i * step, 6)]);
    return found;
  }

  // Low and high end along an axis, powers of ten where it is logarithmic.
  function endsOf(axis, values, points, bars) {
    if (axis.range) return [...axis.range];
    const log = axis.type === "log";
    const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0)).map((value) => (log ? Math.log10(value) : value));
    if (!usable.length) return [0, 1];
    // No spread of arguments: there may be very many.
    let [low, high] = usable.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    const zero = !log && (axis.rangemode === "tozero" || bars);
    if (zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
    const pad = high > low ? (points ? 0.05 : 0.02) * (high - low) : log ? 0.3 : Math.abs(high) / 2 || 0.5;
    return [zero && low === 0 ? 0 : low - pad, zero && high === 0 && low < 0 ? 0 : high + pad];
  }

  function scaled(axis, ends, from, to) {
    const log = axis.type === "log";
    const [a, b] = axis.autorange === "reversed" && !axis.range ? [ends[1], ends[0]] : ends;
    const place = (value) => {
      const at = axis.names ? axis.names.indexOf(value) : log ? Math.log10(value) : value;
      return from + ((at - a) / (b - a)) * (to - from);
    };
    return { axis, place, ends, log, tick: axis.names ? (i) => from + ((i - a) / (b - a)) * (to - from) : place };
  }

  function within(scale, from, to) {
    const [low, high] = [Math.min(from, to) - 0.6, Math.max(from, to) + 0.6];
    return ([value]) => scale.tick(value) >= low && scale.tick(value) <= high;
  }

  // All values that a trace has along one of the axes.
  function along(trace, letter) {
    const values = trace[letter] ?? [];
    if (trace.type === "heatmap") {
      const at = edges(values);
      return [at[0], at.at(-1)];
    }
    const flat = trace.orientation === "h" ? "y" : "x";
    if (trace.type === "bar" && letter === flat && typeof values[0] !== "string") return values.flatMap((value) => [value - 0.6, value + 0.6]);
    const error = trace[`error_${letter}`];
    const ends = error ? values.flatMap((value, i) => [value - (error.arrayminus?.[i] ?? error.array[i]), value + error.array[i]]) : [];
    const moved = letter === "x" && trace.shift ? values.map((value) => value + trace.shift) : values;
    return [...moved.map((value, i) => (known(value) ? value + (trace.base?.[i] ?? 0) : NaN)), ...ends];
  }

  function edges(values) {
    if (values.length < 2) return [values[0] - 0.5, values[0] + 0.5];
    const middles = values.slice(1).map((value, i) => (value + values[i]) / 2);
    return [2 * values[0] - middles[0], ...middles, 2 * values.at(-1) - middles.at(-1)];
  }

  // ---- what is under the pointer

  function hoverText(trace, index, x, y, z) {
    const text = each(trace.text, index);
    const parts = { x, y, z, text, customdata: each(trace.customdata, index), name: trace.name, color: each(trace.marker?.color, index) };
    const template = trace.hovertemplate ?? "%{x}, %{y}";
    return template.replace(/%\{(\w+)(?::\.(\d)g)?\}/g, (_, key, digits) => {
      const value = parts[key];
      return !known(value) ? "—" : typeof value === "number" ? number(value, Number(digits ?? 5)) : String(value);
    });
  }

  function nearest(spots, x, y) {
    let [best, least] = [null, reach];
    for (const spot of spots) {
      const inside = spot.box && x >= spot.box[0] && x <= spot.box[2] && y >= spot.box[1] && y <= spot.box[3];
      const away = spot.box ? (inside ? hit : Infinity) : Math.hypot(spot.x - x, spot.y - y);
      if (away < least || (inside && away === least)) [best, least] = [spot, away];
    }
    return best;
  }

  function listen(plot, svg, spots, act) {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    plot.append(tip);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const spot = nearest(spots, (event.clientX - box.x) * scale, (event.clientY - box.y) * scale);
      tip.hidden = !spot;
      if (!spot) return;
      if (tip.textContent !== spot.text) tip.textContent = spot.text;
      const left = spot.x / scale > box.width / 2;
      tip.style.left = left ? "" : `${spot.x / scale + 12}px`;
      tip.style.right = left ? `${box.width - spot.x / scale + 12}px` : "";
      tip.style.top = `${Math.max(0, spot.y / scale - 18)}px`;
      act?.(spot.at);
    });
    svg.addEventListener("pointerleave", () => (tip.hidden = true));
  }

  // ---- marks

  function line(group, trace, points) {
    let path = "";
    let open = false;
    points.forEach(([x, y], i) => {
      if (!Number.isFinite(x + y)) return (open = false);
      const before = open && trace.line?.shape === "hv" ? `H${x.toFixed(1)}` : "";
      path += `${open ? before + "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
      open = true;
    });
    const { color, width = 2, dash } = trace.line ?? {};
    if (path) make(group, "path", { d: path, class: "mark", "stroke-linejoin": "round" }, { fill: "none", stroke: colour(color ?? "@blue"), "stroke-width": `${width}px`, "stroke-dasharray": dashes[dash] });
  }

  function pointLook(trace, index) {
    const marker = trace.marker ?? {};
    const value = each(marker.color ?? trace.line?.color ?? "@blue", index);
    const numbers = marker.colorscale && typeof value === "number";
    const fill = numbers ? shade(marker.colorscale, (value - marker.cmin) / (marker.cmax - marker.cmin || 1)) : marker.colorscale && !known(value) ? "none" : colour(value);
    const name = each(marker.symbol ?? "circle", index);
    const open = name.endsWith("-open");
    const edge = marker.line ?? {};
    const stroke = open ? colour(each(edge.color, index) ?? value) : edge.color ? colour(each(edge.color, index)) : "none";
    const look = { fill: open ? "none" : fill, stroke, "stroke-width": `${edge.width ?? (open ? 2 : 0)}px`, opacity: marker.opacity };
    if (name.startsWith("x")) Object.assign(look, { fill: "none", stroke: fill, "stroke-width": "2px" });
    return { shape: name.replace("-open", ""), radius: each(marker.size ?? 7, index) / 2, look };
  }

  function point(group, x, y, { shape, radius, look }) {
    if (shape === "circle") make(group, "circle", { cx: x, cy: y, r: radius, class: "mark" }, look);
    else make(group, "path", { d: symbols[shape](radius), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`, class: "mark" }, look);
  }

  function errors(group, trace, letter, X, Y) {
    const error = trace[`error_${letter}`];
    if (!error) return;
    const scale = letter === "x" ? X : Y;
    const tip = (error.width ?? 0) || 0.01;
    trace[letter].forEach((value, i) => {
      const [low, high] = [value - (error.arrayminus?.[i] ?? error.array[i]), value + error.array[i]].map(scale.place);
      const across = letter === "x" ? Y.place(trace.y[i]) : X.place(trace.x[i]);
      if (!Number.isFinite(low + high + across)) return;
      const d = letter === "x" ? `M${low},${across - tip}v${2 * tip}m0,${-tip}H${high}m0,${-tip}v${2 * tip}` : `M${across - tip},${low}h${2 * tip}m${-tip},0V${high}m${-tip},0h${2 * tip}`;
      make(group, "path", { d }, { fill: "none", stroke: colour(error.color ?? "@ink"), "stroke-width": `${error.thickness ?? 1.4}px` });
    });
  }

  function drawScatter(group, trace, X, Y, spots) {
    const points = trace.x.map((x, i) => [known(x) ? X.place(x + (trace.shift ?? 0) || x) : NaN, known(trace.y[i]) ? Y.place(trace.y[i]) : NaN]);
    const mode = trace.mode ?? "lines+markers";
    if (mode.includes("lines")) line(group, trace, points);
    errors(group, trace, "x", X, Y);
    errors(group, trace, "y", X, Y);
    points.forEach(([x, y], i) => {
      if (!Number.isFinite(x + y)) return;
      if (mode.includes("markers")) point(group, x, y, pointLook(trace, i));
      if (trace.hoverinfo !== "skip") spots.push({ x, y, at: trace.x[i], text: hoverText(trace, i, trace.x[i], trace.y[i]) });
    });
  }

  function drawBars(group, trace, X, Y, spots, gap) {
    const lying = trace.orientation === "h";
    const [flat, up, names, lengths] = lying ? [Y, X, trace.y, trace.x] : [X, Y, trace.x, trace.y];
    const unit = Math.abs(flat.tick(1) - flat.tick(0)) || 30;
    const thick = (trace.width ?? 1 - gap) * unit;
    const floor = up.log ? up.place(10 ** up.ends[0]) : up.place(Math.max(up.ends[0], 0));
    names.forEach((name, i) => {
      if (!known(lengths[i])) return;
      const base = trace.base?.[i] ?? 0;
      const from = base ? up.place(base) : floor;
      const to = up.place(base + lengths[i]);
      if (!Number.isFinite(to)) return;
      const side = flat.place(name) - thick / 2;
      const [a, b] = [Math.min(from, to), Math.max(from, to)];
      const box = lying ? [a, side, b, side + thick] : [side, a, side + thick, b];
      make(group, "rect", { x: box[0], y: box[1], width: box[2] - box[0], height: box[3] - box[1], rx: 2, class: "mark" }, { fill: colour(each(trace.marker?.color ?? "@blue", i)), opacity: trace.marker?.opacity });
      if (trace.textposition === "outside") make(group, "text", { x: b + 6, y: side + thick / 2, "dominant-baseline": "central" }, { fill: "var(--ink)" }, each(trace.text, i));
      if (trace.hovertemplate) spots.push({ x: lying ? b : side + thick / 2, y: lying ? side + thick / 2 : a, box, at: name, text: hoverText(trace, i, trace.x[i], trace.y[i]) });
    });
    errors(group, trace, "x", X, Y);
  }

  function drawHeat(group, trace, X, Y, spots) {
    const [across, up] = [edges(trace.x).map(X.place), edges(trace.y).map(Y.place)];
    const [low, high] = limitsOf(trace);
    const gap = (trace.xgap ?? 0) / 2;
    trace.z.forEach((row, j) =>
      row.forEach((z, i) => {
        if (!known(z)) return;
        const box = [Math.min(across[i], across[i + 1]) + gap, Math.min(up[j], up[j + 1]) + gap, Math.max(across[i], across[i + 1]) - gap, Math.max(up[j], up[j + 1]) - gap];
        // Half a pixel more, so that no ground shines between neighbours.
        const more = gap ? 0 : 0.5;
        make(group, "rect", { x: box[0], y: box[1], width: box[2] - box[0] + more, height: box[3] - box[1] + more, class: "mark" }, { fill: shade(trace.colorscale, (z - low) / (high - low || 1)) });
        const one = { ...trace, text: trace.text?.[j]?.[i], customdata: trace.customdata?.[j]?.[i] };
        spots.push({ x: (box[0] + box[2]) / 2, y: (box[1] + box[3]) / 2, box, at: trace.x[i], text: hoverText(one, 0, trace.x[i], trace.y[j], z) });
      }),
    );
  }

  function limitsOf(trace) {
    const values = trace.z.flat().filter(known);
    const [a, b] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    return [trace.zmin ?? a, trace.zmax ?? b];
  }

  // Straight lines and fields across the figure.
  function shape(group, one, X, Y, frame) {
    const at = (letter, value) => {
      const [low, high] = letter === "x" ? [frame.left, frame.right] : [frame.bottom, frame.top];
      return one[`${letter}ref`] === "paper" ? low + value * (high - low) : (letter === "x" ? X : Y).place(value);
    };
    const [x0, x1, y0, y1] = [at("x", one.x0), at("x", one.x1), at("y", one.y0), at("y", one.y1)];
    if (!Number.isFinite(x0 + x1 + y0 + y1)) return;
    if (one.type === "rect") make(group, "rect", { x: Math.min(x0, x1), y: Math.min(y0, y1), width: Math.abs(x1 - x0), height: Math.abs(y1 - y0) }, { fill: colour(one.fillcolor), opacity: one.opacity });
    else make(group, "line", { x1: x0, x2: x1, y1: y0, y2: y1 }, { stroke: colour(one.line.color), "stroke-width": `${one.line.width ?? 1.3}px`, "stroke-dasharray": dashes[one.line.dash] });
  }

  function words(svg, note, X, Y, frame) {
    const x = note.xref === "paper" ? frame.left + note.x * (frame.right - frame.left) : X.place(note.x);
    const y = Y.place(note.y);
    if (!Number.isFinite(x + y)) return;
    const anchor = { left: "start", right: "end" }[note.xanchor] ?? "middle";
    const lift = { bottom: -5, top: 14 }[note.yanchor] ?? 4;
    const font = note.font ?? {};
    make(svg, "text", { x: x + (note.xshift ?? 0), y: y + lift - (note.yshift ?? 0), "text-anchor": anchor, "paint-order": "stroke" }, { fill: colour(font.color ?? "@muted"), "font-size": `${font.size ?? 12}px`, "font-weight": note.bold ? 700 : undefined, stroke: "var(--paper)", "stroke-width": "3px" }, note.text);
  }

  // ---- above the drawing: names of the traces, and the scale of colours; gives how high they are

  function legend(svg, data, left, right, hidden, again) {
    const seen = new Set();
    const entries = data.filter((trace) => trace.name && trace.showlegend !== false && !seen.has(trace.legendgroup ?? trace.name) && seen.add(trace.legendgroup ?? trace.name));
    let [x, y] = [left, 12];
    for (const trace of entries) {
      const key = trace.legendgroup ?? trace.name;
      const length = wide(trace.name) + 44;
      if (x > left && x + length > right) [x, y] = [left, y + 20];
      const one = make(svg, "g", { class: "key", tabindex: 0, role: "button", "aria-pressed": String(!hidden.has(key)) }, { opacity: hidden.has(key) ? 0.35 : 1, cursor: "pointer" });
      if (trace.type === "bar") make(one, "rect", { x: x + 6, y: y - 6, width: 14, height: 12, rx: 2 }, { fill: colour(each(trace.marker?.color, 0)), opacity: trace.opacity ?? trace.marker?.opacity });
      else {
        if ((trace.mode ?? "lines").includes("lines")) line(one, trace, [[x, y], [x + 26, y]]);
        if ((trace.mode ?? "markers").includes("markers")) point(one, x + 13, y, pointLook(trace, 0));
      }
      make(one, "text", { x: x + 32, y, "dominant-baseline": "central" }, {}, trace.name);
      const turn = () => (hidden.has(key) ? hidden.delete(key) : hidden.add(key), again());
      one.addEventListener("click", turn);
      one.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), turn()));
      x += length;
    }
    return entries.length ? y + 20 : 0;
  }

  function bar(svg, trace, right, y) {
    const marker = trace.type === "heatmap" ? trace : trace.marker;
    const [low, high] = trace.type === "heatmap" ? limitsOf(trace) : [marker.cmin, marker.cmax];
    const [length, steps] = [150, 30];
    const end = [low, high].map((value) => number(value, 3));
    const x = right - wide(end[1], 12) - 6 - length;
    for (let i = 0; i < steps; i++) make(svg, "rect", { x: x + (i * length) / steps, y: y + 4, width: length / steps + 0.5, height: 10 }, { fill: shade(marker.colorscale, i / (steps - 1)) });
    const style = { fill: "var(--muted)", "font-size": "12px" };
    make(svg, "text", { x: x + length + 6, y: y + 13 }, style, end[1]);
    make(svg, "text", { x: x - 6, y: y + 13, "text-anchor": "end" }, style, end[0]);
    make(svg, "text", { x: x - 16 - wide(end[0], 12), y: y + 13, "text-anchor": "end" }, style, marker.colorbar);
    return 26;
  }

  // ---- the whole

  function stacked(data, layout) {
    if (layout.barmode !== "stack") return data;
    const tops = new Map();
    return data.map((trace) => {
      if (trace.type !== "bar") return trace;
      const base = trace.x.map((x) => tops.get(x) ?? 0);
      trace.x.forEach((x, i) => tops.set(x, base[i] + (trace.y[i] ?? 0)));
      return { ...trace, base };
    });
  }

  function named(axis, data, letter) {
    if (axis.type !== "category") return axis;
    return { ...axis, names: [...new Set(data.flatMap((trace) => trace[letter]))] };
  }

  // `plot` shows data and layout; `act` is called with the x of what is under the pointer.
  return function draw(plot, given, layout, act) {
    const width = plot.clientWidth;
    if (!width) return;
    plot.shown ??= new Set();
    Object.assign(plot, { data: given, layout });
    const again = () => draw(plot, given, layout, act);
    const height = width < phone ? Math.min(layout.height ?? 400, 420) : (layout.height ?? 400);
    const svg = make(null, "svg", { viewBox: `0 0 ${width} ${height}`, class: "drawn", "font-size": size, "aria-hidden": "true" });
    const all = stacked(given, layout);
    const data = all.filter((trace) => !plot.shown.has(trace.legendgroup ?? trace.name));
    const [across, up] = [named(layout.xaxis, all, "x"), named(layout.yaxis, all, "y")];
    const flat = (letter) => data.some((trace) => trace.type === "bar" && (trace.orientation === "h") === (letter === "x"));
    const points = data.some((trace) => trace.type !== "heatmap" && trace.type !== "bar");
    let [xs, ys] = [
      ["x", across],
      ["y", up],
    ].map(([letter, axis]) => (axis.names ? [-0.5, axis.names.length - 0.5] : endsOf(axis, data.flatMap((trace) => along(trace, letter)), points, flat(letter))));
    // Margins by what stands in them.
    const scales = data.find((trace) => known(trace.colorbar ?? trace.marker?.colorbar));
    let top = layout.showlegend ? legend(svg, all, 8, width - 8, plot.shown, again) : 0;
    if (scales) top += bar(svg, scales, width - 8, top);
    const marks = { up: ticksOf(up, ...ys, Math.max(2, (height - top - 60) / 55)), across: ticksOf(across, ...xs, Math.max(2, width / 90)) };
    const frame = { left: 14 + Math.max(0, ...marks.up.map(([, text]) => wide(text))) + (up.title?.text ? 24 : 0), right: width - 16, top: top + 12 };
    const room = (frame.right - frame.left) / Math.max(marks.across.length, 1);
    const longest = Math.max(0, ...marks.across.map(([, text]) => wide(text)));
    const angle = longest <= room - 6 ? 0 : width < phone || longest < 16 ? -90 : -45;
    const small = angle && room < 16 ? 10 : size;
    const below = (angle ? (angle === -90 ? 1 : 0.75) * longest * (small / size) + 10 : size + 6) + 8;
    frame.bottom = height - below - (across.title?.text ? 24 : 0);
    if (up.scaleanchor) {
      // One unit for both: the shorter axis is given more.
      const units = [(xs[1] - xs[0]) / (frame.right - frame.left), (ys[1] - ys[0]) / (frame.bottom - frame.top)];
      const wider = (ends, factor) => [0.5 * ((1 + factor) * ends[0] + (1 - factor) * ends[1]), 0.5 * ((1 - factor) * ends[0] + (1 + factor) * ends[1])];
      if (units[0] < units[1]) xs = wider(xs, units[1] / units[0]);
      else ys = wider(ys, units[0] / units[1]);
      Object.assign(marks, { up: ticksOf(up, ...ys, 5), across: ticksOf(across, ...xs, 7) });
    }
    const [X, Y] = [scaled(across, xs, frame.left, frame.right), scaled(up, ys, frame.bottom, frame.top)];
    const clip = make(make(svg, "clipPath", { id: `clip-${++count}` }), "rect", { x: frame.left - 8, y: frame.top - 8, width: frame.right - frame.left + 16, height: frame.bottom - frame.top + 16 });
    const grid = make(svg, "g", { class: "grid" });
    for (const [value, text] of marks.across.filter(within(X, frame.left, frame.right))) {
      const x = X.tick(value);
      if (across.showgrid !== false) make(grid, "line", { x1: x, x2: x, y1: frame.top, y2: frame.bottom }, { stroke: "var(--grid)" });
      const turned = angle ? { transform: `rotate(${angle} ${x.toFixed(1)} ${(frame.bottom + 14).toFixed(1)})`, "text-anchor": "end" } : { "text-anchor": "middle" };
      make(grid, "text", { x: angle === -90 ? x : x + (angle ? 4 : 0), y: frame.bottom + 18, class: "xtick", ...turned }, { fill: "var(--muted)", "font-size": `${small}px` }, text);
    }
    for (const [value, text] of marks.up.filter(within(Y, frame.bottom, frame.top))) {
      const y = Y.tick(value);
      if (up.showgrid !== false) make(grid, "line", { x1: frame.left, x2: frame.right, y1: y, y2: y }, { stroke: "var(--grid)" });
      make(grid, "text", { x: frame.left - 8, y, "text-anchor": "end", "dominant-baseline": "central", class: "ytick" }, { fill: "var(--muted)" }, text);
    }
    const under = make(svg, "g", { "clip-path": `url(#${clip.parentNode.id})` });
    const inside = make(svg, "g", { "clip-path": `url(#${clip.parentNode.id})` });
    const over = make(svg, "g", { "clip-path": `url(#${clip.parentNode.id})` });
    make(svg, "line", { x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }, { stroke: "var(--faint)" });
    const spots = [];
    for (const trace of data) {
      const group = make(inside, "g", { class: "trace" }, { opacity: trace.opacity });
      if (trace.type === "heatmap") drawHeat(group, trace, X, Y, spots);
      else if (trace.type === "bar") drawBars(group, trace, X, Y, spots, layout.bargap ?? 0.2);
      else drawScatter(group, trace, X, Y, spots);
    }
    for (const one of layout.shapes ?? []) shape(one.layer === "above" ? over : under, one, X, Y, frame);
    for (const note of layout.annotations ?? []) words(svg, note, X, Y, frame);
    const title = { fill: "var(--muted)" };
    if (across.title?.text) make(svg, "text", { x: (frame.left + frame.right) / 2, y: height - 6, "text-anchor": "middle", class: "title" }, title, across.title.text);
    const middle = (frame.top + frame.bottom) / 2;
    if (up.title?.text) make(svg, "text", { x: 14, y: middle, "text-anchor": "middle", class: "title", transform: `rotate(-90 14 ${middle.toFixed(1)})` }, title, up.title.text);
    plot.replaceChildren(svg);
    // Where a value is, in pixels of the window: for tests, as a hand would find it.
    plot.where = (x, y) => {
      const box = svg.getBoundingClientRect();
      return [box.x + X.place(x), box.y + Y.place(y)];
    };
    listen(plot, svg, spots, act);
  };
})();
