// The tasks as rows: sorted, filtered, opened. Details are built when a row is opened first.
const COLUMNS = [
  { name: "#", width: "52px", number: true, key: (task, i) => i, show: (task, i) => i },
  { name: "task", width: "19%", key: (task) => task.name },
  { name: "ops", width: "19%", key: (task) => task.ops, show: (task) => h("span", { class: `dot ${task.kind}` }, task.ops) },
  { name: "result", width: "14%", key: (task) => task.writes[0] || "", show: (task) => result(task) },
  { name: "kernel", width: "15%", key: (task) => task.kernel },
  { name: "time", width: "88px", number: true, down: true, key: (task) => task.us ?? -1, show: (task) => duration(task.us) },
  { name: "launch", width: "128px", number: true, down: true, key: (task) => (task.launch ? task.launch[0] * task.launch[1] : -1), show: (task) => launch(task.launch) },
  { name: "stream", width: "76px", number: true, key: (task) => task.stream },
  { name: "origin", width: "17%", key: (task) => task.origin, show: (task) => task.place },
];
const result = (task) => task.writes.map((w) => w.slice(w.indexOf(": ") + 2).replace(/\{.*\}/, "")).join(", ");
const launch = (l) => (l ? `${l[0].toLocaleString("en")} × ${l[1]}` : "");
const resources = (l) => (l ? `${l[0].toLocaleString("en")} CTAs × ${l[1]} threads, ${l[2]} registers, ${size(l[3])} shared` : "");

function drawTable() {
  const bodies = tasks.map(taskBody);
  const texts = tasks.map((task) => [task.name, task.ops, task.kind, task.writes.join(" "), task.kernel, task.origin, `stream ${task.stream}`].join(" ").toLowerCase());
  const count = h("output"), filter = h("input", { type: "search", placeholder: "Filter by name, op, kernel, origin, kind", "aria-label": "Filter tasks", oninput: sift });
  const heads = COLUMNS.map((column, c) => h("th", { class: column.number ? "number" : "", style: { width: column.width } }, h("button", { onclick: () => sort(c) }, column.name)));
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), ...bodies);
  document.getElementById("tasks-table").append(table);
  document.getElementById("tasks-tools").append(filter, count);
  sift();

  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let seen = 0, us = 0;
    texts.forEach((text, i) => {
      const match = words.every((word) => text.includes(word));
      bodies[i].classList.toggle("hidden", !match);
      if (match) { seen++; us += tasks[i].us || 0; }
    });
    count.textContent = `${seen.toLocaleString("en")}${seen < tasks.length ? ` of ${tasks.length.toLocaleString("en")}` : ""} tasks, ${duration(us)} alone`;
  }
  function sort(c) {
    const was = heads[c].getAttribute("aria-sort"), first = COLUMNS[c].down ? "descending" : "ascending";
    const now = !was ? first : was === "ascending" ? "descending" : "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[c].setAttribute("aria-sort", now);
    const keys = tasks.map((task, i) => COLUMNS[c].key(task, i));
    const order = tasks.map((_, i) => i).sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
    if (now === "descending") order.reverse();
    table.append(...order.map((i) => bodies[i]));
  }
  views.push({
    id: "tasks",
    selected: (i) => {
      table.querySelector("tbody.selected")?.classList.remove("selected");
      if (i >= 0) bodies[i].classList.add("selected");
    },
    repaint: () => {},
    reveal: (i) => {
      if (bodies[i].classList.contains("hidden")) { filter.value = ""; sift(); }
      const scroll = document.getElementById("tasks-table");
      scroll.scrollTop = bodies[i].offsetTop - scroll.clientHeight / 3;
    },
  });
}

function taskBody(task, i) {
  const open = h("button", { "aria-expanded": "false", onclick: (event) => { event.stopPropagation(); expand(); } }, task.name);
  const cells = COLUMNS.map((column, c) => {
    const shown = column.show ? column.show(task, i) : column.key(task, i);
    const kind = c === 1 ? "open" : column.name === "time" ? "number us" : column.number ? "number" : c === 3 || c === 4 ? "code soft" : c > 2 ? "soft" : "";
    return h("td", { class: kind, title: column.number ? null : column.key(task, i) }, c === 1 ? open : shown);
  });
  cells[5].style.setProperty("--part", (task.us || 0) / slowest);
  const body = h("tbody", { "data-task": task.name }, h("tr", { class: "task", onclick: () => select(i) }, ...cells));
  function expand() {
    const opened = body.classList.toggle("opened");
    open.setAttribute("aria-expanded", String(opened));
    if (opened && body.children.length === 1) body.append(h("tr", { class: "detail" }, h("td", { colspan: COLUMNS.length }, ...details(task, i))));
    else if (body.children[1]) body.children[1].hidden = !opened;
  }
  return body;
}

function details(task, i) {
  const links = (indices) => indices.flatMap((p, k) => [k ? ", " : "", h("button", { class: "soft", onclick: () => choose(p) }, tasks[p].name)]);
  const fact = (label, ...values) => h("span", {}, `${label} `, h("b", {}, ...values));
  const facts = h("div", { class: "facts" },
    fact("reads", task.reads.join(", ") || "nothing"), fact("writes", task.writes.join(", ")),
    task.after.length ? fact("after", ...links(task.after)) : "", readers[i].length ? fact("before", ...links(readers[i])) : "",
    task.waits.length ? fact("event waits", ...links(task.waits)) : "",
    fact("launch", resources(task.launch) || "resources not known"), fact("kernels", String(task.launches)),
    bound(task) ? fact("upper limit", terms(bound(task))) : "", task.workspace ? fact("workspace", size(task.workspace)) : "", task.origin ? fact("origin", task.origin) : "");
  const source = h("div");
  const parts = [facts, candidatesOf(task, source), h("h4", {}, "Computes"), h("pre", {}, task.body)];
  if (task.runs) parts.push(h("h4", {}, "Runs"), h("pre", {}, task.runs));
  const own = data.candidates[task.candidates][task.chosen];
  if (own && own[5] !== -1) showSource(source, own);
  return [...parts, source];
}

const bound = (task) => data.candidates[task.candidates][task.chosen]?.[8];

function candidatesOf(task, source) {
  const tried = data.candidates[task.candidates];
  if (!tried.length) return h("p", { class: "soft" }, "Its kernel was not chosen among candidates here.");
  const most = Math.max(...tried.map((c) => c[1] || 0), 1e-9), best = task.us || Math.min(...tried.map((c) => c[1] ?? Infinity));
  const order = tried.map((_, k) => k).sort((a, b) => (tried[a][1] ?? Infinity) - (tried[b][1] ?? Infinity) || a - b);
  const rows = order.map((k) => {
    const [name, us, spread, from, refused, number, taken, why, limit] = tried[k], chosen = k === task.chosen;
    return h("tr", { class: chosen ? "chosen" : "" },
      h("td", {}, name, chosen ? h("span", { class: "mark" }, "chosen") : ""),
      h("td", { class: "number" }, us === null ? "did not run" : duration(us), us !== null && spread ? h("small", {}, ` ± ${significant(spread, 2)}`) : ""),
      h("td", { class: "wide" }, us === null ? "" : h("b", { class: "bar", style: { "--part": us / most } })),
      h("td", { class: "number" }, us === null || chosen ? "" : `${us >= best ? "+" : "−"}${Math.abs(Math.round(100 * (us / best - 1)))}%`),
      h("td", { class: "soft" }, from || ""), h("td", { class: "soft" }, launch(taken)),
      h("td", { class: "number soft", title: limit ? terms(limit) : null }, limit ? percent(limit[0]) : ""),
      h("td", { class: refused || us === null ? "refused" : "soft" }, why),
      h("td", {}, number === -1 ? "" : h("button", { class: "mark", onclick: () => showSource(source, tried[k]) }, "source")));
  });
  const heads = ["kernel", "time", "", "to chosen", "known by", "launch", "at most", "why not", ""];
  return h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((head, c) => h("th", { class: c === 1 || c === 3 || c === 6 ? "number" : "" }, head)))), h("tbody", {}, ...rows));
}

// The performance upper limit: what part of the machine's peak a tile may reach, and of what it is made.
const percent = (part) => `${significant(100 * part, 2)}%`;
const terms = ([part, memory, shared, tail, fits, us]) =>
  `at most ${percent(part)} of peak: memory ${memory}, shared ${shared}, tail ${tail}, fits ${fits}${Number.isFinite(us) ? `; about ${duration(us)}` : ""}`;

function showSource(place, candidate) {
  const text = candidate[5] < 0 ? "This source is left out to keep the page small; ANABRANCH_DUMP=folder writes all of them." : data.sources[candidate[5]];
  place.replaceChildren(h("h4", {}, `Source of ${candidate[0]}`), h("pre", {}, text));
}
