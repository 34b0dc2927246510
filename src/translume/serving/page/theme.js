"use strict";
// Apply the theme, light or dark, before the page is rendered: as chosen here, or as in the system.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return document.documentElement.dataset.chosen ?? localStorage.getItem("translume.theme") ?? "auto";
    } catch {
      return "auto";  // The browser keeps nothing for pages.
    }
  };
  const take = () => {
    document.documentElement.dataset.theme = chosen() === "auto" ? (dark.matches ? "dark" : "light") : chosen();
  };
  dark.addEventListener("change", take);
  addEventListener("translume:theme", take);
  take();
  // A part of the page that does not arrive leaves dead controls.
  addEventListener("error", ({ target }) => {
    if (target.tagName !== "SCRIPT") return;
    document.getElementById("problem").textContent = "A part of this page could not be loaded. Reload the page.";
    for (const id of ["problem", "problem-row"]) document.getElementById(id)?.removeAttribute("hidden");
  }, true);
}
