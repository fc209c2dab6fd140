"use strict";
// What the report and the live page share beside the drawing: the theme and its button, and columns by number.
const isthmus = (() => {
  const root = document.documentElement;

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  // Plain data with columns in place of their numbers.
  function resolved(value, columns) {
    if (value === null || typeof value !== "object") return value;
    if (Array.isArray(value)) return value.map((one) => resolved(one, columns));
    if (columns && Number.isInteger(value.column)) return columns[value.column];
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolved(one, columns)]));
  }

  // The button is named by the theme it leads to.
  function followTheme() {
    const toggle = document.getElementById("theme");
    function nameButton() {
      toggle.textContent = isDark() ? "Light" : "Dark";
      toggle.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
      toggle.setAttribute("aria-pressed", String(isDark()));
    }
    toggle.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      nameButton();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameButton);
    nameButton();
  }

  return { root, resolved, followTheme };
})();
