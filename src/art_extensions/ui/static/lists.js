// The list of rollouts: only the rows in sight are in the document, pages of it are fetched by number.
"use strict";
{
  const WAIT_MS = 150, AHEAD = 6;
  const KEPT = document.documentElement.dataset.exported !== undefined; // a file: all rows are in the page
  const DASH = "–";

  // A number as the page wrote it; what is none lies below all.
  const amount = (text) => {
    const plain = String(text).replaceAll(",", "");
    return plain === DASH || Number.isNaN(Number(plain)) ? -Infinity : Number(plain);
  };
  // Whether a field has another value than the page gave it.
  const isChosen = (field) => {
    if (!field.options) return (field.defaultValue ?? field.value) !== field.value;
    const given = [...field.options].findIndex((option) => option.defaultSelected);
    return field.selectedIndex !== Math.max(0, given);
  };
  class List {
    constructor(node) {
      this.node = node;
      this.body = node.querySelector(".list-body");
      this.space = node.querySelector(".list-space");
      this.form = document.querySelector("[data-filters]");
      this.output = this.form.querySelector("[data-count]");
      this.size = Number(node.dataset.page);
      this.count = Number(node.dataset.count);
      this.active = 0;
      this.rows = new Map();
      this.drawn = new Map();
      this.pages = new Map();
      JSON.parse(node.dataset.rows).forEach((row, at) => this.rows.set(at, row));
      this.serial = 0;
      this.body.addEventListener("scroll", () => this.request(), { passive: true });
      this.body.addEventListener("keydown", (event) => this.onKey(event));
      this.body.addEventListener("focus", () => this.mark());
      addEventListener("resize", () => this.reset());
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("input", () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.filter(), WAIT_MS);
      });
      this.reset();
      if ([...this.form.elements].some(isChosen)) this.filter(); // before this script ran
    }

    get height() {
      return matchMedia("(max-width: 46rem)").matches ? 56 : 34;
    }

    reset() {
      for (const row of this.drawn.values()) row.remove();
      this.drawn.clear();
      this.space.style.height = `${Math.max(1, this.count) * this.height}px`;
      this.node.setAttribute("aria-rowcount", this.count + 1);
      this.render();
    }

    request() {
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        this.render();
      });
    }

    render() {
      const height = this.height;
      const first = Math.max(0, Math.floor(this.body.scrollTop / height) - AHEAD);
      const last = Math.min(this.count, Math.ceil((this.body.scrollTop + this.body.clientHeight) / height) + AHEAD);
      for (const [at, row] of this.drawn)
        if (at < first || at >= last || row.dataset.blank) {
          row.remove();
          this.drawn.delete(at);
        }
      const fresh = document.createDocumentFragment();
      for (let at = first; at < last; at++) {
        if (!this.rows.has(at)) this.load(Math.floor(at / this.size));
        if (!this.drawn.has(at)) {
          const row = this.row(at);
          this.drawn.set(at, row);
          fresh.append(row);
        }
      }
      if (!this.count && !this.space.firstChild) {
        const words = document.createElement("p");
        words.className = "list-empty";
        words.textContent = "No rollout fits. Change the filter.";
        this.space.append(words);
      } else if (this.count) this.space.querySelector(".list-empty")?.remove();
      this.space.append(fresh);
      this.mark();
    }

    row(at) {
      const found = this.rows.get(at);
      const row = document.createElement("div");
      row.className = "list-row";
      row.id = `row-${at}`;
      row.setAttribute("role", "row");
      row.setAttribute("aria-rowindex", at + 2);
      row.style.top = `${at * this.height}px`;
      const cell = (text, kind) => {
        const span = document.createElement("span");
        span.setAttribute("role", "cell");
        if (kind) span.className = kind;
        if (text !== null) span.textContent = text;
        row.append(span);
        return span;
      };
      if (!found) {
        row.dataset.blank = "1";
        cell("…");
        return row;
      }
      const link = document.createElement("a");
      link.href = `${this.node.dataset.run}/${encodeURIComponent(found.split)}/${found.step}/${found.group}/${found.place}${KEPT ? "/index.html" : ""}`;
      link.tabIndex = -1;
      link.textContent = this.node.dataset.step ? `${found.group} · ${found.place}` : `${found.split} ${found.step} · ${found.group} · ${found.place}`;
      cell(null).append(link);
      cell(found.what);
      cell(found.reward, "n strong").title = found.unscored || "";
      cell(found.advantage, "n");
      const fate = document.createElement("span");
      fate.className = `fate fate-${found.kind}`;
      fate.textContent = found.fate;
      cell(null).append(fate);
      cell(found.tokens, "n");
      cell(found.turns, "n");
      row.addEventListener("click", () => {
        this.active = at;
        this.mark();
      });
      return row;
    }

    address(page) {
      const asked = new URLSearchParams(new FormData(this.form));
      for (const name of ["split", "step"]) if (this.node.dataset[name]) asked.set(name, this.node.dataset[name]);
      asked.set("page", page);
      return `${this.node.dataset.address}?${asked}`;
    }

    async load(page) {
      if (this.pages.has(page)) return;
      const serial = this.serial;
      this.pages.set(page, true);
      try {
        const found = await (await fetch(this.address(page))).json();
        if (serial !== this.serial) return;
        found.rows.forEach((row, at) => this.rows.set(page * this.size + at, row));
        if (found.count !== this.count || page === 0) this.take(found.count);
        else this.request();
      } catch {
        this.output.textContent = "These pages are closed: run art ui again.";
      }
    }

    take(count) {
      this.count = count;
      this.output.textContent = `${count.toLocaleString("en")} rollouts`;
      this.reset();
    }

    filterKept() {
      this.kept ??= [...this.rows.values()];
      const { fate, text, order, way } = Object.fromEntries(new FormData(this.form));
      const words = fate && this.form.querySelector("[name=fate]").selectedOptions[0].textContent.replace(/ \([^)]*\)$/, "");
      const fits = (row) => (!fate || row.fate === words) && row.what.toLowerCase().includes(text.toLowerCase());
      const found = this.kept.filter(fits);
      if (order !== "step") found.sort((a, b) => amount(a[order]) - amount(b[order]));
      if (way === "down") found.reverse();
      this.rows = new Map(found.entries());
      this.active = 0;
      this.body.scrollTop = 0;
      this.take(found.length);
    }

    filter() {
      if (KEPT) return this.filterKept();
      this.serial += 1;
      this.pages.clear();
      this.rows.clear();
      this.active = 0;
      this.body.scrollTop = 0;
      this.load(0);
    }

    mark() {
      const focused = document.activeElement === this.body;
      for (const [at, row] of this.drawn) row.classList.toggle("active", focused && at === this.active);
    }

    onKey(event) {
      const page = Math.max(1, Math.floor(this.body.clientHeight / this.height) - 1);
      const next = { ArrowDown: this.active + 1, ArrowUp: this.active - 1, Home: 0, End: this.count - 1, PageDown: this.active + page, PageUp: this.active - page }[event.key];
      if (event.key === "Enter") {
        this.drawn.get(this.active)?.querySelector("a")?.click();
        event.preventDefault();
      }
      if (next === undefined) return;
      event.preventDefault();
      this.active = Math.max(0, Math.min(this.count - 1, next));
      const top = this.active * this.height, bottom = top + this.height;
      if (top < this.body.scrollTop) this.body.scrollTop = top;
      else if (bottom > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = bottom - this.body.clientHeight;
      this.render();
      const row = this.drawn.get(this.active);
      this.output.textContent = `row ${this.active + 1} of ${this.count}: ${row ? row.textContent : ""}`;
    }
  }

  for (const node of document.querySelectorAll("[data-list]")) new List(node);
}
