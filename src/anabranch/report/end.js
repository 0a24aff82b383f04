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
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "Escape" && selected >= 0) select(selected);
  const step = { j: 1, k: -1 }[event.key];
  if (!step) return;
  const next = selected < 0 ? (step > 0 ? 0 : tasks.length - 1) : selected + step;
  if (next < 0 || next >= tasks.length) return;
  choose(next);
  for (const view of views) view.reveal(next);
});

// Links to a task and to a module, page.html#task=NAME, when the page opens and afterwards.
function visit(i) {
  choose(i);
  for (const view of views) { view.open?.(i); view.reveal(i); }
  document.querySelector("#tasks-table tbody.selected").rows[0].scrollIntoView({ block: "center" });
}
function follow() {
  const [, kind, text] = /^#(task|module)=(.*)$/s.exec(location.hash) ?? [];
  if (!kind) return;
  const plain = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const name = plain(text);
  if (kind === "task" && position.has(name)) visit(position.get(name));
  if (kind === "module" && tasks.some((task) => within(task.module, name))) {
    focusOn(name);
    document.getElementById("tasks").scrollIntoView();
  }
}
addEventListener("hashchange", follow);
follow();
document.documentElement.dataset.ready = "true";
