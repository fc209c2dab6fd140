"use strict";
// The cells of a sweep: which two parameters are shown, which cell is looked into. Arranges what the page holds.
(() => {
  const colours = ["@blue", "@vermilion", "@green", "@orange", "@purple", "@sky"];
  const dashes = ["solid", "dash", "dot", "dashdot"];
  // Beyond so many columns cells are small.
  const dense = 24;

  function element(tag, text, attributes = {}) {
    const one = document.createElement(tag);
    if (text !== "") one.textContent = text;
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    return one;
  }

  function prepare(phase) {
    const box = document.querySelector(`[data-phase="${phase.key}"]`);
    const table = box.querySelector(".cells");
    const where = new Map(phase.cells.map(([at], index) => [at.join(), index]));
    const view = { across: phase.across, up: phase.up, held: [...phase.held] };
    let chosen = phase.first;

    function place(column, row) {
      const at = [...view.held];
      if (view.across !== null) at[view.across] = column;
      if (view.up !== null) at[view.up] = row;
      return where.get(at.join());
    }

    function told(index) {
      const [at, , , , words] = phase.cells[index];
      const values = phase.names.map((one, i) => `${one} ${phase.labels[i][at[i]]}`);
      return `${values.join(", ")}${values.length ? ": " : ""}${words}`;
    }

    function build() {
      const columns = view.across === null ? [""] : phase.labels[view.across];
      const rows = view.up === null ? [""] : phase.labels[view.up];
      const body = document.createElement("tbody");
      for (let row = rows.length - 1; row >= 0; row--) {
        const line = document.createElement("tr");
        line.append(element("th", rows[row], { scope: "row" }));
        columns.forEach((_, column) => {
          const index = place(column, row);
          if (index === undefined) return line.append(element("td", "", { class: "void" }));
          const [, text, kind, agreement] = phase.cells[index];
          const cell = element("td", text, { class: kind, "data-cell": index });
          if (agreement !== null && agreement < 1) cell.style.setProperty("--agreement", agreement);
          line.append(cell);
        });
        body.append(line);
      }
      table.tBodies[0].replaceWith(body);
      const foot = document.createElement("tr");
      foot.append(document.createElement("td"), ...(view.across === null ? [] : columns.map((text) => element("th", text, { scope: "col" }))));
      table.tFoot.replaceChildren(foot);
      box.querySelector("[data-up]").textContent = view.up === null ? "" : `↑ ${phase.titles[view.up]}`;
      box.querySelector("[data-across]").textContent = view.across === null ? "" : `${phase.titles[view.across]} →`;
      enable();
    }

    function cells() {
      return [...table.querySelectorAll("[data-cell]")];
    }

    // One stop for the tabulator; arrows lead from cell to cell.
    function enable() {
      table.setAttribute("role", "grid");
      table.setAttribute("aria-label", "Cells of the sweep; arrow keys move, Enter looks into one");
      table.classList.toggle("dense", table.tBodies[0].rows[0].cells.length > dense);
      for (const cell of cells()) {
        cell.setAttribute("role", "gridcell");
        cell.tabIndex = -1;
      }
      mark();
    }

    function mark() {
      let stop = null;
      for (const cell of cells()) {
        const mine = Number(cell.dataset.cell) === chosen;
        cell.setAttribute("aria-selected", String(mine));
        cell.tabIndex = -1;
        if (mine || stop === null) stop = cell;
      }
      if (stop) stop.tabIndex = 0;
    }

    function lookInto(index, moved) {
      chosen = index;
      mark();
      const [, , , , , first, count] = phase.cells[index];
      const inside = box.querySelector(".inside");
      inside.hidden = false;
      inside.querySelector("h4").textContent = told(index);
      const list = document.createElement("table");
      const head = document.createElement("tr");
      head.append(...phase.heads.map((text) => element("th", text, { scope: "col" })));
      list.createTHead().append(head);
      const body = list.createTBody();
      for (const row of phase.runs.slice(first, first + count)) {
        const line = document.createElement("tr");
        // Texts may be anything: they are set as text.
        line.append(...row.map((text) => element("td", text)));
        body.append(line);
      }
      inside.querySelector(".scroll").replaceChildren(list);
      draw(index);
      if (moved) inside.scrollIntoView({ block: "nearest" });
    }

    function draw(index) {
      const target = document.querySelector(`[data-figure="${phase.figure}"]`);
      if (!phase.figure || !target) return;
      const [, , , , , first, count] = phase.cells[index];
      const data = [];
      let longest = 1;
      for (let run = first; run < first + count; run++) {
        if (!phase.spectra[run]) continue;
        const [label, rank, values] = phase.spectra[run];
        const colour = colours[(run - first) % colours.length];
        const dash = dashes[Math.floor((run - first) / colours.length) % dashes.length];
        const lines = phase.layers ? values : [values];
        lines.forEach((y, number) => {
          const kept = !phase.layers || rank === null || number < rank;
          longest = Math.max(longest, y.length);
          data.push({
            type: "scatter",
            mode: "lines+markers",
            x: y.map((_, i) => i + 1),
            y,
            name: label,
            legendgroup: label,
            showlegend: number === 0,
            opacity: kept ? 1 : 0.4,
            line: { color: colour, width: kept ? 2 : 1, dash },
            marker: { color: colour, size: kept ? 6 : 3 },
            hovertemplate: phase.layers ? `${label}\nlayer %{x}, value ${number + 1}: %{y:.3g}` : `${label}\nvalue %{x}: %{y:.3g}`,
          });
        });
      }
      target.querySelector("h3").textContent = `${phase.caption}: ${told(index)}`;
      const step = [1, 2, 5, 10, 20, 50].find((one) => longest <= 16 * one) ?? 100;
      target.dispatchEvent(new CustomEvent("isthmus-show", { detail: { data, "layout.xaxis.dtick": step } }));
    }

    function move(cell, right, down) {
      const rows = [...table.tBodies[0].rows];
      let [row, column] = [rows.indexOf(cell.parentElement), cell.cellIndex];
      // Over what is not there.
      for (;;) {
        [row, column] = [row + down, column + right];
        const next = rows[row]?.cells[column];
        if (!next || next.tagName === "TH") return;
        if (next.dataset.cell !== undefined) {
          cell.tabIndex = -1;
          next.tabIndex = 0;
          next.focus();
          return;
        }
      }
    }

    const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest("[data-cell]");
      if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key === "Enter" || event.key === " ") lookInto(Number(cell.dataset.cell), true);
      else if (ways[event.key]) move(cell, ...ways[event.key]);
      else return;
      event.preventDefault();
    });
    table.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-cell]");
      if (cell) lookInto(Number(cell.dataset.cell), true);
    });
    for (const event of ["mouseover", "focusin"]) {
      table.addEventListener(event, ({ target }) => {
        const cell = target.closest("[data-cell]");
        if (!cell || cell.title) return;
        cell.title = told(Number(cell.dataset.cell));
        cell.setAttribute("aria-label", cell.title);
      });
    }

    function menu(label, options, selected, act) {
      const select = document.createElement("select");
      options.forEach((text, index) => select.append(element("option", text, { value: index })));
      select.value = String(selected);
      select.addEventListener("change", () => act(Number(select.value)));
      const whole = element("label", `${label} `);
      whole.append(select);
      return whole;
    }

    function menus() {
      const choices = box.querySelector(".choices");
      const parts = [
        menu("across", phase.names, view.across, (index) => turn("across", "up", index)),
        menu("up", phase.names, view.up, (index) => turn("up", "across", index)),
      ];
      phase.names.forEach((label, i) => {
        if (i === view.across || i === view.up) return;
        parts.push(menu(`${label} =`, phase.labels[i], view.held[i], (value) => ((view.held[i] = value), build())));
      });
      choices.replaceChildren(...parts);
    }

    function turn(axis, other, index) {
      if (view[other] === index) view[other] = view[axis];
      view[axis] = index;
      build();
      menus();
      box.querySelector(axis === "across" ? ".choices label:nth-child(1) select" : ".choices label:nth-child(2) select").focus();
    }

    // Two parameters or fewer have their places.
    if (phase.names.length > 2) menus();
    enable();
    if (chosen !== null) lookInto(chosen, false);
  }

  JSON.parse(document.getElementById("phases").textContent).forEach(prepare);
})();
