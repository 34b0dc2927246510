// The choice between light and dark, which theme.js applies.
import { store, stored } from "./storage.js";

export function setUpTheme() {
  const choice = document.getElementById("theme");
  choice.value = stored("translume.theme") ?? "auto";
  choice.addEventListener("change", () => {
    store("translume.theme", choice.value);
    document.documentElement.dataset.chosen = choice.value;
    dispatchEvent(new Event("translume:theme"));
  });
}
