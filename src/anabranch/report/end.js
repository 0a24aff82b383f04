// Draw everything, follow the colour scheme and the keyboard, and say that the page is ready.
drawTable();
drawTimeline();
drawGraph();
drawMemory();

const refusals = [...document.querySelectorAll("#refusals > details")];
const refusalTexts = refusals.map((item) => item.textContent.toLowerCase());
document.getElementById("refused-filter")?.addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  let seen = 0;
  refusals.forEach((item, i) => {
    item.hidden = !words.every((word) => refusalTexts[i].includes(word));
    seen += item.hidden ? 0 : 1;
  });
  document.getElementById("refused-count").textContent = words.length ? `${seen} of ${refusals.length} reasons` : "";
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readPaint();
  for (const view of views) view.repaint();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && selected >= 0) select(selected);
});
// A link to a task: page.html#task=NAME.
const wanted = tasks.findIndex((task) => `#task=${encodeURIComponent(task.name)}` === location.hash);
if (wanted >= 0) {
  select(wanted);
  for (const view of views) view.reveal(wanted);
}
document.documentElement.dataset.ready = "true";
