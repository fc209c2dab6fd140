"use strict";
// What the report and the live page share: the theme and its button, colours by name, how a figure is dressed.
const isthmus = (() => {
  const root = document.documentElement;
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, showTips: false };
  // Texts may look like the name of a colour; there it means nothing.
  const texts = new Set(["text", "ticktext", "name", "hovertemplate", "customdata"]);

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  }

  // Plain data with colours, and columns where there are any, in place of their names.
  function resolved(value, columns, key) {
    if (texts.has(key) || value === null) return value;
    if (typeof value === "string") return value[0] === "@" ? colour(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map((one) => resolved(one, columns, key));
    if (typeof value !== "object") return value;
    if (columns && Number.isInteger(value.column)) return columns[value.column];
    return Object.fromEntries(Object.entries(value).map(([k, one]) => [k, resolved(one, columns, k)]));
  }

  // A layout over the page's own, over that of every figure; its axes' titles stand off by so many pixels.
  function dressed(layout, own, standoff) {
    const line = { gridcolor: colour("grid"), linecolor: colour("faint"), tickcolor: colour("faint"), tickfont: { color: colour("muted") } };
    const out = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
      hoverlabel: { bgcolor: colour("ink"), bordercolor: colour("ink"), font: { color: colour("paper"), size: 13 }, align: "left" },
      hovermode: "closest",
      dragmode: false,
      ...own,
      ...layout,
    };
    for (const axis of ["xaxis", "yaxis"]) {
      const title = { font: { size: 13, color: colour("muted") }, standoff, ...layout[axis].title };
      out[axis] = { ...line, showline: axis === "xaxis", ticks: "outside", ticklen: 4, fixedrange: true, ...layout[axis], title };
    }
    return out;
  }

  // Name the button by the theme it leads to; redraw whenever the theme has changed.
  function followTheme(redraw) {
    const toggle = document.getElementById("theme");
    function nameButton() {
      toggle.textContent = isDark() ? "Light" : "Dark";
      toggle.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
      toggle.setAttribute("aria-pressed", String(isDark()));
    }
    function themeChanged() {
      nameButton();
      redraw();
    }
    toggle.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      themeChanged();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
    nameButton();
  }

  return { root, config, colour, resolved, dressed, followTheme };
})();
