// The tasks as rows: sorted, filtered, opened. Details are built when a row is opened first.
const COLUMNS = [
  { name: "#", id: "at", number: true, key: (task, i) => i, show: (task, i) => i },
  { name: "task", id: "task", key: (task) => task.name },
  { name: "ops", id: "ops", key: (task) => task.ops, show: (task) => h("span", { class: `dot ${task.kind}` }, h("span", {}, ...breakable(task.ops))) },
  { name: "result", id: "result", code: true, key: (task) => task.writes[0] || "", show: (task) => h("span", {}, ...breakable(result(task))) },
  { name: "kernel", id: "kernel", code: true, key: (task) => task.kernel, show: (task) => h("span", {}, ...breakable(task.kernel)) },
  { name: "time", id: "us", number: true, down: true, key: (task) => task.us ?? -1, show: (task) => duration(task.us) },
  { name: "launch", id: "launch", number: true, down: true, key: (task) => (task.launch ? task.launch[0] * task.launch[1] : -1), show: (task) => launch(task.launch) },
  { name: "stream", id: "stream", number: true, key: (task) => task.stream },
  { name: "module", id: "place", key: (task) => task.module || task.place, show: (task) => h("span", {}, ...breakable(task.module || task.place)) },
];
let span = COLUMNS.length;
const result = (task) => task.writes.map((w) => w.slice(w.indexOf(": ") + 2).replace(/\{.*\}/, "")).join(", ");
const launch = (l) => (l ? `${l[0].toLocaleString("en")} × ${l[1]}` : "");
const resources = (l) => (l ? `${l[0].toLocaleString("en")} CTAs × ${l[1]} threads, ${l[2]} registers, ${size(l[3])} shared${l[4] ? ", the last two estimated" : ""}` : "");

function drawTable() {
  const rows = tasks.map(taskBody), bodies = rows.map((row) => row.body);
  const texts = tasks.map((task) => [task.name, task.ops, task.kind, task.writes.join(" "), task.kernel, task.origin, `stream ${task.stream}`].join(" ").toLowerCase());
  const count = h("output", { "aria-live": "polite" }), filter = h("input", { type: "search", placeholder: "Filter by name, op, kernel, origin, kind", "aria-label": "Filter tasks", oninput: sift });
  const heads = COLUMNS.map((column, c) => h("th", { class: `col-${column.id}${column.number ? " number" : ""}` }, h("button", { onclick: () => sort(c) }, column.name)));
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), ...bodies);
  const picked = modulesToPick();
  document.getElementById("tasks-table").append(table);
  document.getElementById("tasks-tools").append(filter, picked ?? "", count);
  sift();
  // Narrow windows leave columns out: a row of details is as wide as those that are there.
  const wide = () => { span = heads.filter((head) => head.offsetWidth).length; table.querySelectorAll("tr.detail > td").forEach((cell) => { cell.colSpan = span; }); };
  addEventListener("resize", wide);
  wide();

  // All modules that have tasks, each behind the one that it is in.
  function modulesToPick() {
    if (!data.modules.length) return null;
    const open = [];
    const listed = data.modules.map(([path, number, us]) => {
      while (open.length && !path.startsWith(`${open.at(-1)}.`)) open.pop();
      const deep = "\u00a0\u00a0".repeat(open.length), short = open.length ? path.slice(open.at(-1).length + 1) : path;
      open.push(path);
      return h("option", { value: path }, `${deep}${shorten(short, 40)} (${number} ${number === 1 ? "task" : "tasks"}, ${duration(us)})`);
    });
    const options = [h("option", { value: "" }, "all modules"), ...listed];
    return h("select", { "aria-label": "Filter by module", onchange: (event) => focusOn(event.target.value || null) }, ...options);
  }
  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let seen = 0, us = 0;
    texts.forEach((text, i) => {
      const match = inside(i) && words.every((word) => text.includes(word));
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
    focused: () => {
      if (picked && focus && ![...picked.options].some((option) => option.value === focus)) picked.append(h("option", { value: focus }, focus));
      if (picked) picked.value = focus ?? "";
      sift();
    },
    repaint: () => {},
    reveal: (i) => {
      if (!inside(i)) focusOn(null);
      if (bodies[i].classList.contains("hidden")) { filter.value = ""; sift(); }
      const scroll = document.getElementById("tasks-table");
      scroll.scrollTop = bodies[i].offsetTop - scroll.clientHeight / 3;
    },
    open: (i) => rows[i].expand(true),
  });
}

function taskBody(task, i) {
  const open = h("button", { "aria-expanded": "false", onclick: (event) => { event.stopPropagation(); pick(); } }, ...breakable(task.name));
  const cells = COLUMNS.map((column) => {
    const kinds = [`col-${column.id}`, column.number ? "number" : "", column.code ? "code soft" : "", column.id === "place" ? "soft" : "", column.id === "task" ? "open" : ""];
    const shown = column.id === "task" ? open : column.show ? column.show(task, i) : column.key(task, i);
    return h("td", { class: kinds.filter(Boolean).join(" ") }, shown);
  });
  cells[5].style.setProperty("--part", (task.us || 0) / slowest);
  // Who marks a word of a row to copy it has not clicked on the row.
  const row = h("tr", { class: "task", onclick: () => getSelection().toString() || pick() }, ...cells);
  const body = h("tbody", { "data-task": task.name }, row);
  function pick() {
    expand(!body.classList.contains("opened"));
    choose(i);
  }
  function expand(opened) {
    body.classList.toggle("opened", opened);
    open.setAttribute("aria-expanded", String(opened));
    if (opened && body.children.length === 1) body.append(h("tr", { class: "detail" }, h("td", { colspan: span }, ...details(task, i))));
    if (body.children[1]) body.children[1].hidden = !opened;
  }
  return { body, expand };
}

function details(task, i) {
  const links = (indices) => indices.flatMap((p, k) => [k ? ", " : "", h("button", { class: "soft", onclick: () => visit(p) }, tasks[p].name)]);
  const fact = (label, ...values) => h("span", {}, `${label} `, h("b", {}, ...values));
  const facts = h("div", { class: "facts" },
    fact("reads", task.reads.join(", ") || "nothing"), fact("writes", task.writes.join(", ")),
    task.after.length ? fact("after", ...links(task.after)) : "", readers[i].length ? fact("before", ...links(readers[i])) : "",
    task.waits.length ? fact("event waits", ...links(task.waits)) : "",
    fact("launch", resources(task.launch) || "resources not known"), fact("kernels", String(task.launches)),
    bound(task) ? fact("upper limit", terms(bound(task))) : "", task.workspace ? fact("workspace", size(task.workspace)) : "", task.origin ? fact("origin", task.origin) : "");
  const source = h("div");
  const parts = [facts, candidatesOf(task, source), h("h3", {}, "Computes"), h("pre", { tabindex: 0 }, task.body)];
  if (task.runs) parts.push(h("h3", {}, "Runs"), h("pre", { tabindex: 0 }, task.runs));
  const own = data.candidates[task.candidates][task.chosen];
  if (own && own[5] !== -1) showSource(source, own);
  return [...parts, source];
}

const change = (ratio) => {
  const percents = Math.round(100 * (ratio - 1));
  return `${percents > 0 ? "+" : percents < 0 ? "−" : ""}${Math.abs(percents)}%`;
};
const bound = (task) => data.candidates[task.candidates][task.chosen]?.[8];

function candidatesOf(task, source) {
  const tried = data.candidates[task.candidates];
  if (!tried.length) return h("p", { class: "soft" }, "Its kernel was not chosen among candidates here.");
  const most = Math.max(...tried.map((c) => c[1] || 0), 1e-9), best = task.us || Math.min(...tried.map((c) => c[1] ?? Infinity));
  const order = tried.map((_, k) => k).sort((a, b) => (tried[a][1] ?? Infinity) - (tried[b][1] ?? Infinity) || a - b);
  const rows = order.map((k) => {
    const [name, us, spread, from, refused, number, taken, why, limit] = tried[k], chosen = k === task.chosen;
    const cell = (kind, ...shown) => h("td", { class: kind }, ...shown);
    return h("tr", { class: chosen ? "chosen" : "" },
      cell("name", ...breakable(name), chosen ? h("span", { class: "mark" }, "chosen") : ""),
      cell("number", us === null ? "did not run" : duration(us), us !== null && spread ? h("small", {}, ` ± ${significant(spread, 2)}`) : ""),
      cell("wide", us === null ? "" : h("b", { class: "bar", style: { "--part": us / most } })),
      cell("number", us === null || chosen ? "" : change(us / best)),
      cell("soft", from ? h("span", { title: data.meanings[from] ?? null }, from) : ""),
      cell("soft launch", launch(taken)),
      h("td", { class: "number soft limit", title: limit ? terms(limit) : null }, limit ? percent(limit[0]) : ""),
      cell(`why ${refused || us === null ? "refused" : "soft"}`, why),
      cell("", number === -1 ? "" : h("button", { class: "mark", onclick: () => showSource(source, tried[k]) }, "source")));
  });
  const heads = [["kernel"], ["time", "number"], ["of the slowest", "wide"], ["to chosen", "number"], ["known by"], ["launch", "launch"], ["at most", "number limit"], ["why not"], ["source"]];
  return h("table", { class: "tried" }, h("thead", {}, h("tr", {}, ...heads.map(([head, kind]) => h("th", { class: kind ?? "" }, head)))), h("tbody", {}, ...rows));
}

// The performance upper limit: what part of the machine's peak a tile may reach, and of what it is made.
const percent = (part) => `${significant(100 * part, 2)}%`;
const terms = ([part, memory, shared, tail, fits, us]) =>
  `at most ${percent(part)} of peak: memory ${memory}, shared ${shared}, tail ${tail}, fits ${fits}${Number.isFinite(us) ? `; about ${duration(us)}` : ""}`;

function showSource(place, candidate) {
  const text = candidate[5] < 0 ? "This source is left out to keep the page small; ANABRANCH_DUMP=folder writes all of them." : data.sources[candidate[5]];
  place.replaceChildren(h("h3", {}, `Source of ${candidate[0]}`), h("pre", { tabindex: 0 }, text));
}
