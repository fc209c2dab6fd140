"use strict";
// Figures, sorting and downloads of a report, after theme.js. No network, no framework.
(() => {
  const { root, config, colour, resolved } = isthmus;
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const figures = new Map();
  const phone = 640;
  const own = { margin: { l: 10, r: 14, t: 18, b: 10 }, legend: { orientation: "h", y: 1.08, x: 0 } };
  // How far from what is seen a figure is drawn, so that who scrolls finds it there.
  const margin = "400px 0px";

  function laidOut(layout, width) {
    const out = isthmus.dressed(layout, own, 12);
    if (width < phone) {
      out.height = Math.min(out.height, 420);
      if ((out.xaxis.tickvals ?? []).length > 14) Object.assign(out.xaxis, { tickangle: -90, tickfont: { ...out.xaxis.tickfont, size: 9 } });
    }
    return out;
  }

  // A scale of colours at the right would leave a phone no room for the figure.
  function slim(data, width) {
    if (width >= phone) return data;
    const above = { orientation: "h", x: 0.5, y: 1.03, yanchor: "bottom", thickness: 10 };
    const lay = (bar) => ({ ...bar, ...above, title: { ...bar.title, side: "top" } });
    return data.map((trace) => ({
      ...trace,
      ...(trace.colorbar ? { colorbar: lay(trace.colorbar) } : {}),
      ...(trace.marker && trace.marker.colorbar ? { marker: { ...trace.marker, colorbar: lay(trace.marker.colorbar) } } : {}),
    }));
  }

  // Drawing is what takes the time of a page: a figure is drawn when it comes near, one at a time, the nearest first.
  const waiting = new Set();
  let busy = false;
  const near =
    "IntersectionObserver" in window
      ? new IntersectionObserver(
          (entries) => {
            for (const { target, isIntersecting } of entries) {
              const figure = figures.get(target.closest("[data-figure]").dataset.figure);
              // Who hurries past does not wait for it.
              if (isIntersecting) waiting.add(figure);
              else waiting.delete(figure);
            }
            if (!busy) drawNext();
          },
          { rootMargin: margin },
        )
      : null;

  function distance({ plot }) {
    const { top, bottom } = plot.getBoundingClientRect();
    return Math.max(top - innerHeight, -bottom, 0);
  }

  function drawNext() {
    busy = waiting.size > 0;
    if (!busy) {
      root.dataset.ready = "true";
      return;
    }
    const next = [...waiting].reduce((best, one) => (distance(one) < distance(best) ? one : best));
    waiting.delete(next);
    // In between the page scrolls, answers and paints; and one figure that fails takes none of the others with it.
    setTimeout(drawNext);
    draw(next);
  }

  function drawWhenNear(figure) {
    // Observed anew, it is told of even where it has not moved.
    near.unobserve(figure.plot);
    near.observe(figure.plot);
  }

  function draw(figure, paper) {
    const { spec, plot } = figure;
    const width = paper ?? plot.clientWidth;
    // Inside something closed there is no width to draw for; what was drawn there stays until it is opened.
    if (!width && near) return drawWhenNear(figure);
    waiting.delete(figure);
    near?.unobserve(plot);
    figure.drawn = true;
    // A scale of colours that turns would leave its old marks behind.
    const anew = figure.narrow !== width < phone;
    figure.narrow = width < phone;
    if (anew) Plotly.purge(plot);
    const data = slim(resolved(spec.data, spec.columns), width);
    const layout = laidOut(resolved(spec.layout, spec.columns), width);
    const done = Plotly.react(plot, data, paper ? { ...layout, width: paper } : { ...layout, autosize: true }, config);
    if (anew && spec.drives) plot.on("plotly_hover", (event) => drive(figure, event.points[0].x));
    return done;
  }

  function set(target, path, value) {
    const parts = path.split(".");
    const last = parts.pop();
    for (const part of parts) target = target[part] ??= {};
    target[last] = value;
  }

  function choose(figure, which, option) {
    figure.spec.choices[which].selected = option;
    for (const [path, value] of Object.entries(figure.spec.choices[which].options[option])) set(figure.spec, path, value);
  }

  function drive(figure, x) {
    const { key, values } = figure.spec.drives;
    const target = figures.get(key);
    const option = values.indexOf(x);
    if (!target || option < 0 || target.spec.choices[0].selected === option) return;
    target.box.querySelector("select").value = String(option);
    choose(target, 0, option);
    draw(target);
  }

  function prepare(spec) {
    const box = document.querySelector(`[data-figure="${spec.key}"]`);
    const figure = { spec, box, plot: box.querySelector(".plot") };
    figures.set(spec.key, figure);
    spec.choices.forEach((choice, which) => choose(figure, which, choice.selected));
    for (const select of box.querySelectorAll("select")) {
      // Some browsers keep a choice over a reload; the figure must show what the menu says.
      select.value = String(spec.choices[Number(select.dataset.choice)].selected);
      select.addEventListener("change", () => {
        choose(figure, Number(select.dataset.choice), Number(select.value));
        draw(figure);
      });
    }
    // What another script wants it to show, by path.
    box.addEventListener("isthmus-show", ({ detail }) => {
      for (const [path, value] of Object.entries(detail)) set(spec, path, value);
      if (figure.drawn) draw(figure);
    });
    for (const button of box.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => savePlot(figure, button.dataset.save));
    }
  }

  function savePlot(figure, format) {
    if (!figure.drawn) draw(figure);
    const { offsetWidth: width, offsetHeight: height } = figure.plot;
    // A file without a ground is unreadable on the other theme.
    const layout = { ...figure.plot.layout, paper_bgcolor: colour("paper") };
    const options = { format, filename: `isthmus-${figure.spec.key}`, width, height, scale: format === "png" ? 2 : 1 };
    return Plotly.downloadImage({ data: figure.plot.data, layout, config }, options);
  }

  function saveText(text, type, filename) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = filename;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function csv(table) {
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const heads = [...table.tHead.rows[0].cells].map((cell) => quoted(cell.textContent.trim()));
    const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => quoted(cell.dataset.raw)));
    return [heads, ...rows].map((row) => row.join(",")).join("\n") + "\n";
  }

  function sort(table, column, head) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const key = (row) => row.cells[column].dataset.raw;
    const numeric = [...body.rows].every((row) => row.cells[column].classList.contains("number"));
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      // What is missing stands last, whichever way.
      if (!x || !y) return !x - !y;
      const way = numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
      return up ? way : -way;
    };
    body.append(...[...body.rows].sort(order));
  }

  for (const table of document.querySelectorAll("[data-table]")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const rows = [...table.tBodies[0].rows];
      if (rows.length && rows.every((row) => row.cells[column].classList.contains("number"))) head.classList.add("number");
      head.querySelector("button")?.addEventListener("click", () => sort(table, column, head));
    });
  }
  for (const button of document.querySelectorAll("[data-csv]")) {
    const table = document.querySelector(`[data-table="${button.dataset.csv}"]`);
    button.addEventListener("click", () => saveText(csv(table), "text/csv", `isthmus-${button.dataset.csv}.csv`));
  }

  isthmus.followTheme(() => figures.forEach((figure) => figure.drawn && draw(figure)));

  // Paper is white, and narrower than a screen.
  let before;
  addEventListener("beforeprint", () => {
    before = {
      theme: root.dataset.theme,
      open: [...document.querySelectorAll("details:not([open])")],
      drawn: new Set([...figures.values()].filter((figure) => figure.drawn)),
    };
    root.dataset.theme = "light";
    before.open.forEach((one) => (one.open = true));
    figures.forEach((figure) => draw(figure, 660));
  });
  addEventListener("afterprint", () => {
    if (before.theme) root.dataset.theme = before.theme;
    else delete root.dataset.theme;
    before.open.forEach((one) => (one.open = false));
    figures.forEach((figure) => {
      if (before.drawn.has(figure)) {
        draw(figure)?.then(() => Plotly.Plots.resize(figure.plot));
        return;
      }
      // Drawn for the paper only.
      Plotly.purge(figure.plot);
      figure.drawn = false;
      delete figure.narrow;
      drawWhenNear(figure);
    });
  });

  addEventListener("resize", () => {
    figures.forEach((figure) => {
      const width = figure.plot.clientWidth;
      // A window may pass through no size at all on its way to another; nothing is drawn for that.
      if (figure.drawn && width && figure.narrow !== width < phone) draw(figure);
    });
  });

  specs.forEach(prepare);
  figures.forEach(near ? drawWhenNear : (figure) => draw(figure));
  // Where figures wait to be looked at, the page is ready once those in sight are drawn.
  if (!near || !figures.size) root.dataset.ready = "true";
})();
