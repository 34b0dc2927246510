// What furo leaves out for readers who use no mouse: blocks of code scroll by the keyboard, and the two side columns have names.
addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("pre, .math-wrapper, .table-wrapper")) block.tabIndex = 0;
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
});
