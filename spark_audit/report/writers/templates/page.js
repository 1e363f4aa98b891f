(() => {
  "use strict";
  const find = (query, within = document) => within.querySelector(query);
  const findAll = (query, within = document) => [...within.querySelectorAll(query)];

  // --- state: kept in the page's address, so that a link shares it ------------------

  const state = { anchor: "", off: new Set() };

  function read() {
    // "#anchor&off=a,b"; the anchor may be missing.
    const fields = location.hash.slice(1).split("&");
    state.anchor = fields[0].includes("=") ? "" : fields.shift();

    const settings = new Map();
    for (const field of fields) {
      const equals = field.indexOf("=");
      if (equals <= 0) continue;
      try {
        settings.set(field.slice(0, equals), decodeURIComponent(field.slice(equals + 1)));
      } catch {
        // Half an escape: the rest of the address still counts.
      }
    }
    state.off = new Set((settings.get("off") || "").split(",").filter((name) => name));
  }

  function keep(push = false) {
    const fields = [state.anchor];
    if (state.off.size) fields.push("off=" + [...state.off].map(encodeURIComponent).join(","));
    const hash = "#" + fields.join("&");
    const url = location.pathname + location.search + (hash === "#" ? "#" : hash);
    try {
      if (push) history.pushState(null, "", url);
      else history.replaceState(null, "", url);
    } catch {
      // Some readers of local files forbid it: the page works without.
    }
  }

  // --- checkpoints on and off -------------------------------------------------------

  const bar = find("#bar");
  const boxes = findAll("input[type=checkbox]", bar);
  const known = new Set(boxes.map((box) => box.value));
  const entry = (name) => {
    const short = name.replace(/\[\d+\]$/, "");
    return !known.has(name) && known.has(short) ? short : name;
  };

  function showCheckpoints() {
    for (const box of boxes) box.checked = !state.off.has(box.value);
    for (const element of findAll("[data-checkpoint]")) {
      element.classList.toggle("off", state.off.has(entry(element.dataset.checkpoint)));
    }
    measure();
  }

  function switched() {
    state.off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    showCheckpoints();
    keep();
    const shown = boxes.length - state.off.size;
    find("#status").textContent = shown + " of " + boxes.length + " checkpoints shown";
  }
  bar.hidden = boxes.length < 2;
  bar.addEventListener("change", switched);
  bar.addEventListener("submit", (event) => event.preventDefault());
  for (const [id, on] of [["#all", true], ["#none", false]]) {
    find(id).addEventListener("click", () => {
      for (const box of boxes) box.checked = on;
      switched();
    });
  }

  // --- cells: intervals stand back, and lines are broken around them only ------------

  for (const cell of findAll("td")) {
    if (!cell.textContent.includes(" [")) continue;
    for (const node of [...cell.childNodes]) {
      if (node.nodeType !== Node.TEXT_NODE) continue;
      const [value, ...additions] = node.data.split(/ (?=\[|p |MDE )/);
      node.data = value;
      node.after(...additions.flatMap((addition) => {
        const element = document.createElement("i");
        element.textContent = addition;
        return [" ", element];
      }));
    }
  }

  // --- tables: sorted by a click on a header ----------------------------------------

  const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?/i;
  const MISSING = new Set(["", "-", "not estimable"]);
  const words = new Intl.Collator("en", { numeric: true });

  function sort(table, column, direction) {
    const body = table.tBodies[0];
    const numeric = table.tHead.rows[0].cells[column].classList.contains("n");
    const key = (row) => {
      const text = row.cells[column].textContent.trim();
      if (MISSING.has(text)) return null;
      if (!numeric) return text;
      const match = NUMBER.exec(text);
      return match ? Number(match[0]) : null;
    };
    const rows = [...body.rows].map((row) => ({ row, key: key(row), place: Number(row.dataset.place) }));
    rows.sort((a, b) => {
      if (direction === 0) return a.place - b.place;
      // What is missing stands last either way.
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
      const order = numeric ? a.key - b.key : words.compare(a.key, b.key);
      return direction * order || a.place - b.place;
    });
    body.append(...rows.map(({ row }) => row));
  }

  for (const table of findAll("table.sortable")) {
    [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.place = place; });
    findAll("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const next = { ascending: "descending", descending: null }[before];
        const order = before === null ? "ascending" : next;
        for (const header of findAll("thead th", table)) header.removeAttribute("aria-sort");
        if (order) head.setAttribute("aria-sort", order);
        sort(table, column, { ascending: 1, descending: -1 }[order] || 0);
      });
    });
  }

  // Said once, below the first table that can be sorted.
  const firstTable = find(".scroll table.sortable");
  if (firstTable) {
    const sortHint = document.createElement("p");
    sortHint.className = "remark screen";
    sortHint.textContent = "Every table is sorted by a click on a column's header.";
    firstTable.parentElement.after(sortHint);
  }

  // --- what is wider than the page says so ------------------------------------------

  const boxesThatScroll = findAll(".scroll");
  function measure() {
    for (const box of boxesThatScroll) {
      // What is folded has no layout yet, and is measured when it is opened.
      if (box.closest("details:not([open])")) continue;
      const wide = box.scrollWidth > box.clientWidth + 1;
      const before = box.previousElementSibling;
      const hint = before && before.classList.contains("hint") ? before : null;
      if (wide && !hint) {
        const text = document.createElement("p");
        text.className = "hint";
        text.textContent = "Wider than the page: scroll sideways →";
        box.before(text);
      } else if (!wide && hint) {
        hint.remove();
      }
      if (wide) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  }
  let scheduled = 0;
  const measureSoon = () => {
    cancelAnimationFrame(scheduled);
    scheduled = requestAnimationFrame(measure);
  };
  addEventListener("resize", measureSoon);
  document.addEventListener("toggle", measureSoon, true);

  // --- links inside the page keep what was chosen -----------------------------------

  function goTo(id) {
    const target = id && document.getElementById(id);
    if (!target) return;
    target.scrollIntoView();
    if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
    target.focus({ preventScroll: true });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    state.anchor = link.getAttribute("href").slice(1);
    keep(true);
    goTo(state.anchor);
  });

  function show() {
    read();
    showCheckpoints();
    goTo(state.anchor);
  }
  addEventListener("hashchange", show);
  addEventListener("popstate", show);

  // --- print: what cannot be concluded is opened, and closed again -------------------

  let opened = [];
  function unfold() {
    // The rest stays folded: it would fill dozens of pages.
    opened.push(...findAll("details.scoped:not([open])"));
    for (const details of opened) details.open = true;
  }
  function fold() {
    for (const details of opened) details.open = false;
    opened = [];
  }
  addEventListener("beforeprint", unfold);
  addEventListener("afterprint", fold);
  matchMedia("print").addEventListener("change", (event) => (event.matches ? unfold() : fold()));

  show();
  if (matchMedia("print").matches) unfold();
})();
