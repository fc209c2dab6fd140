"use strict";
// Figures, sorting and downloads of a report, after theme.js and draw.js. No network, no framework.
(() => {
  const { root } = isthmus;
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const figures = new Map();

  function draw({ spec, plot }) {
    const [data, layout] = [spec.data, spec.layout].map((one) => isthmus.resolved(one, spec.columns));
    isthmus.draw(plot, data, layout, spec.drives && ((x) => drive(spec.drives, x)));
  }

  // At first, and whenever there is more or less room: on another screen, on paper, or where something was opened.
  const room = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.dataset.width === String(target.clientWidth)) continue;
      target.dataset.width = target.clientWidth;
      draw(figures.get(target.closest("[data-figure]").dataset.figure));
    }
    root.dataset.ready = "true";
  });

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

  function drive({ key, values }, x) {
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
      draw(figure);
    });
    for (const button of box.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => savePlot(figure, button.dataset.save));
    }
    room.observe(figure.plot);
  }

  function save(content, type, filename) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = filename;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // The drawing with every colour written into it, on a ground: a file has no style sheet around it.
  function alone(svg) {
    const copy = svg.cloneNode(true);
    const [here, there] = [svg, copy].map((one) => [one, ...one.querySelectorAll("*")]);
    const spelt = (value) => value.replace(/color\(srgb ([^)/]+)[^)]*\)/g, (_, parts) => `rgb(${parts.trim().split(" ").map((one) => Math.round(255 * one)).join(",")})`);
    here.forEach((one, i) => {
      const style = getComputedStyle(one);
      for (const key of ["fill", "stroke", "font-size", "font-family"]) there[i].style.setProperty(key, spelt(style.getPropertyValue(key)));
    });
    const { width, height } = svg.viewBox.baseVal;
    for (const [key, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height })) copy.setAttribute(key, value);
    copy.style.background = spelt(getComputedStyle(root).getPropertyValue("--paper"));
    return new XMLSerializer().serializeToString(copy);
  }

  function savePlot({ spec, plot }, format) {
    const text = alone(plot.querySelector("svg"));
    const type = "image/svg+xml";
    if (format === "svg") return save(text, type, `isthmus-${spec.key}.svg`);
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = Object.assign(document.createElement("canvas"), { width: 2 * image.width, height: 2 * image.height });
      const pen = canvas.getContext("2d");
      pen.fillStyle = getComputedStyle(root).getPropertyValue("--paper");
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(image.src);
      canvas.toBlob((blob) => save(blob, "image/png", `isthmus-${spec.key}.png`));
    });
    image.src = URL.createObjectURL(new Blob([text], { type }));
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
    button.addEventListener("click", () => save(csv(table), "text/csv", `isthmus-${button.dataset.csv}.csv`));
  }

  isthmus.followTheme();

  // On paper nothing can be opened.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((one) => (one.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((one) => (one.open = false)));

  specs.forEach(prepare);
  if (!figures.size) root.dataset.ready = "true";
})();
