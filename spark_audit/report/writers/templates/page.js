(() => {
  "use strict";
  const root = document.documentElement;
  const one = (query, within = document) => within.querySelector(query);
  const all = (query, within = document) => [...within.querySelectorAll(query)];

  // --- state: kept in the page's address, so that a link shares it ------------------

  const state = { anchor: "", off: new Set(), theme: "", left: "", right: "" };

  function read() {
    const [anchor, ...rest] = location.hash.slice(1).split("&");
    const first = anchor.includes("=") ? [anchor, ...rest] : rest;
    const given = new Map();
    for (const part of first) {
      const at = part.indexOf("=");
      if (at > 0) {
        try {
          given.set(part.slice(0, at), decodeURIComponent(part.slice(at + 1)));
        } catch {
          // Half an escape: the rest of the address still counts.
        }
      }
    }
    state.anchor = anchor.includes("=") ? "" : anchor;
    state.off = new Set((given.get("off") || "").split(",").filter((name) => name));
    state.theme = ["dark", "light"].includes(given.get("theme")) ? given.get("theme") : "";
    state.left = given.get("left") || "";
    state.right = given.get("right") || "";
  }

  function keep(push = false) {
    const parts = [state.anchor];
    if (state.off.size) parts.push("off=" + [...state.off].map(encodeURIComponent).join(","));
    for (const key of ["theme", "left", "right"]) {
      if (state[key]) parts.push(key + "=" + encodeURIComponent(state[key]));
    }
    const hash = "#" + parts.filter((part, k) => part || k === 0).join("&");
    const url = location.pathname + location.search + (hash === "#" ? "#" : hash);
    try {
      if (push) history.pushState(null, "", url);
      else history.replaceState(null, "", url);
    } catch {
      // Some readers of local files forbid it: the page works without.
    }
  }

  // --- dark and light ---------------------------------------------------------------

  const themeButton = one("#theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (state.theme ? state.theme === "dark" : prefersDark.matches);

  function showTheme() {
    if (state.theme) root.dataset.theme = state.theme;
    else delete root.dataset.theme;
    themeButton.textContent = isDark() ? themeButton.dataset.light : themeButton.dataset.dark;
  }
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    state.theme = isDark() ? "light" : "dark";
    showTheme();
    keep();
  });
  prefersDark.addEventListener("change", showTheme);

  // --- checkpoints on and off -------------------------------------------------------

  const bar = one("#bar");
  const boxes = all("input[type=checkbox]", bar);
  const known = new Set(boxes.map((box) => box.value));
  const entry = (name) => {
    const short = name.replace(/\[\d+\]$/, "");
    return !known.has(name) && known.has(short) ? short : name;
  };

  function showCheckpoints() {
    for (const box of boxes) box.checked = !state.off.has(box.value);
    for (const element of all("[data-checkpoint]")) {
      element.classList.toggle("off", state.off.has(entry(element.dataset.checkpoint)));
    }
    for (const table of all("table.figures")) {
      const heads = all("thead th", table);
      for (const row of table.tBodies[0].rows) {
        heads.forEach((head, k) => {
          row.cells[k].classList.toggle("off", head.classList.contains("off"));
        });
      }
    }
    const absent = one("#absent");
    if (absent) {
      const names = [...new Set([one("#left").value, one("#right").value])]
        .filter((name) => state.off.has(entry(name)));
      absent.hidden = names.length === 0;
      absent.textContent = "Switched off in the bar above: " + names.join(", ") + ".";
    }
    measure();
  }

  function switched() {
    state.off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    showCheckpoints();
    keep();
    const shown = boxes.length - state.off.size;
    one("#status").textContent = shown + " of " + boxes.length + " checkpoints shown";
  }
  bar.hidden = boxes.length < 2;
  bar.addEventListener("change", switched);
  bar.addEventListener("submit", (event) => event.preventDefault());
  for (const [id, on] of [["#all", true], ["#none", false]]) {
    one(id).addEventListener("click", () => {
      for (const box of boxes) box.checked = on;
      switched();
    });
  }

  // --- cells: intervals stand back, and lines are broken around them only ------------

  for (const cell of all("td")) {
    if (!cell.textContent.includes(" [")) continue;
    for (const node of [...cell.childNodes]) {
      if (node.nodeType !== Node.TEXT_NODE) continue;
      const [first, ...rest] = node.data.split(/ (?=\[|p |MDE )/);
      node.data = first;
      node.after(...rest.flatMap((part) => {
        const element = document.createElement("i");
        element.textContent = part;
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
    const numeric = table.classList.contains("n" + (column + 1));
    const key = (row) => {
      const text = row.cells[column].textContent.trim();
      if (MISSING.has(text)) return null;
      if (!numeric) return text;
      const found = NUMBER.exec(text);
      return found ? Number(found[0]) : null;
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

  for (const table of all("table.sortable")) {
    [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.place = place; });
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const next = { ascending: "descending", descending: null }[before];
        const order = before === null ? "ascending" : next;
        for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
        if (order) head.setAttribute("aria-sort", order);
        sort(table, column, { ascending: 1, descending: -1 }[order] || 0);
      });
    });
  }

  const told = document.createElement("p");
  told.className = "remark screen";
  told.textContent = "Every table is sorted by a click on a column's header.";
  const first = one(".scroll table.sortable") && one(".scroll table.sortable").parentElement;
  if (first) first.after(told);

  // --- what is wider than the page says so ------------------------------------------

  const boxesThatScroll = all(".scroll");
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
  let due = 0;
  const later = () => {
    cancelAnimationFrame(due);
    due = requestAnimationFrame(measure);
  };
  addEventListener("resize", later);
  document.addEventListener("toggle", later, true);

  // --- token heat map ---------------------------------------------------------------

  const choosers = one("#choosers");
  let showTokens = () => {};
  if (choosers) {
    const left = one("#left"), right = one("#right");
    const edges = one("#tokens").dataset.edges.split(" ").map(Number);
    const defaults = { left: left.value, right: right.value };
    const cases = all(".case").map((element) => {
      const heads = all("thead th", element).slice(3).map((head) => head.dataset.name);
      const rows = [...one("tbody", element).rows].map((row) => [...row.cells].map((cell) => cell.textContent));
      return { element, heads, rows };
    });
    const shade = (text) => {
      if (MISSING.has(text)) return "h";
      const value = Number(text);
      return "h" + edges.filter((edge) => edge <= value).length;
    };
    const pick = (select, name) => {
      const names = [...select.options].map((option) => option.value);
      select.value = names.includes(name) ? name : defaults[select.id];
    };

    showTokens = () => {
      pick(left, state.left);
      pick(right, state.right);
      for (const { element, heads, rows } of cases) {
        const at = [left, right].map((select) => 3 + heads.indexOf(select.value));
        all(".side", element).forEach((side, k) => {
          const name = [left, right][k].value;
          side.dataset.checkpoint = name;
          one(".who b", side).textContent = name;
          all(".tokens > .t", side).forEach((token, i) => {
            const cells = rows[i];
            token.classList.remove("h", ...edges.map((_, n) => "h" + n), "h" + edges.length);
            token.classList.add(shade(cells[at[k]]));
            const role = cells[2] === "-" ? "" : "; " + cells[2];
            token.title = cells[1] + ": " + left.value + " " + cells[at[0]] + ", " +
              right.value + " " + cells[at[1]] + " nats" + role;
          });
        });
      }
    };
    choosers.hidden = false;
    choosers.addEventListener("change", () => {
      state.left = left.value === defaults.left ? "" : left.value;
      state.right = right.value === defaults.right ? "" : right.value;
      showTokens();
      showCheckpoints();
      keep();
    });

    // One stop of the Tab key a panel; arrows go from token to token.
    for (const { element } of cases) {
      const readout = one(".readout", element);
      readout.hidden = false;
      const tell = (token) => {
        for (const other of all(".t.now", element)) other.classList.remove("now");
        for (const panel of all(".tokens", element)) {
          const place = all(":scope > .t", token.parentElement).indexOf(token);
          all(":scope > .t", panel)[place].classList.add("now");
        }
        readout.textContent = token.title;
      };
      for (const panel of all(".tokens", element)) {
        const tokens = all(":scope > .t", panel);
        if (!tokens.length) continue;
        tokens.forEach((token, k) => { token.tabIndex = k === 0 ? 0 : -1; });
        const from = (event) => event.target.closest(".t");
        panel.addEventListener("pointerover", (event) => from(event) && tell(from(event)));
        panel.addEventListener("focusin", (event) => from(event) && tell(from(event)));
        panel.addEventListener("keydown", (event) => {
          const place = tokens.indexOf(from(event));
          const next = {
            ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tokens.length - 1,
          }[event.key];
          if (place < 0 || next === undefined || !tokens[next]) return;
          event.preventDefault();
          tokens[place].tabIndex = -1;
          tokens[next].tabIndex = 0;
          tokens[next].focus();
        });
      }
    }
  }

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
    showTheme();
    showTokens();
    showCheckpoints();
    goTo(state.anchor);
  }
  addEventListener("hashchange", show);
  addEventListener("popstate", show);

  // --- print: what cannot be concluded is opened, and closed again -------------------

  let opened = [];
  function unfold() {
    // The rest stays folded: it would fill dozens of pages.
    opened.push(...all("details.scoped:not([open])"));
    for (const part of opened) part.open = true;
  }
  function fold() {
    for (const part of opened) part.open = false;
    opened = [];
  }
  addEventListener("beforeprint", unfold);
  addEventListener("afterprint", fold);
  matchMedia("print").addEventListener("change", (event) => (event.matches ? unfold() : fold()));

  show();
  if (matchMedia("print").matches) unfold();
})();
